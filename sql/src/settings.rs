//! Where the database is: `--database-url`, else `PCFARM_DATABASE_URL`, else `DATABASE_URL`, else libpq's `PG*` variables;
//! what the chosen one leaves open is filled as libpq fills it (service file, `PG*`, defaults, password file), so that
//! what works with psql works here. tokio-postgres reads none of these. This module reads the environment once, writes
//! nothing, and never prints a password.

mod conninfo;
mod encryption;
mod passfile;
mod places;
mod service;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::Host;

pub use conninfo::ConninfoError;
use conninfo::Parameters;
pub use passfile::{Login, Passfile, PassfileError};
use places::Place;

use crate::connect::{HOST_TIMEOUT, Target};
use crate::tls::{Encryption, Mode, TlsFileError, with_cause};

/// A host that swallows packets must not hold a start for the kernel's two minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_PORT: u16 = 5432;

/// Which of the four places named the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Flag,
    PcfarmDatabaseUrl,
    DatabaseUrl,
    PgVariables,
    /// Nothing did: the default socket, the operating system's user.
    Defaults,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Flag => "--database-url",
            Source::PcfarmDatabaseUrl => "PCFARM_DATABASE_URL",
            Source::DatabaseUrl => "DATABASE_URL",
            Source::PgVariables => "the PG* variables",
            Source::Defaults => "PostgreSQL's defaults, as no database was named",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("{source_name} cannot be read")]
    Conninfo { source_name: String, source: ConninfoError },
    #[error("the variable {name} is not UTF-8")]
    NotUnicode { name: String },
    #[error("{name} must be {expected}")]
    Value { name: String, expected: &'static str },
    #[error("there are {ports} ports for {hosts} hosts: give one port, or one for each host")]
    PortCount { hosts: usize, ports: usize },
    #[error("there are {addresses} host addresses for {hosts} hosts: give one for each host")]
    AddressCount { hosts: usize, addresses: usize },
    #[error("sslmode={mode} is too weak for {strong}: use sslmode={wanted}")]
    Weak { mode: Mode, strong: &'static str, wanted: &'static str },
    #[error("sslmode={0} cannot hold for Unix sockets: name network hosts alone, or use sslmode=prefer")]
    SocketAndTls(Mode),
    #[error("{} exists, and lists of revoked certificates are not supported: move it away, or use sslmode=prefer", .0.display())]
    Revocations(PathBuf),
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error("{name} cannot be used")]
    Parameter { name: String, source: tokio_postgres::Error },
    #[error("{name}={value} is not supported: leave it out")]
    Unsupported { name: &'static str, value: String },
    #[error("the service {service:?} is defined neither in {}", files_searched(.files))]
    NoService { service: String, files: Vec<PathBuf> },
    #[error("the service file {} cannot be read", path.display())]
    ServiceFile { path: PathBuf, source: std::io::Error },
    #[error("line {line} of the service file {} is not a known `key=value`", path.display())]
    ServiceLine { path: PathBuf, line: usize },
    #[error("no user name is given and the operating system does not tell one: set PGUSER or name it in the URL")]
    NoUser,
}

fn files_searched(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    names.join(" nor in ")
}

/// All that is taken from outside, so that the rest is a function of it.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub variables: HashMap<String, OsString>,
    pub os_user: Option<String>,
    pub home: Option<PathBuf>,
    /// Where local programs look for PostgreSQL's socket.
    pub socket_directory: PathBuf,
}

impl Environment {
    pub fn of_process() -> Environment {
        let variables: HashMap<String, OsString> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("PG") || name.ends_with("DATABASE_URL"))
            .collect();
        // Debian and Fedora compile the first in, PostgreSQL itself and Homebrew the second.
        let socket_directory =
            ["/var/run/postgresql", "/tmp"].into_iter().map(PathBuf::from).find(|directory| directory.is_dir());
        Environment {
            variables,
            os_user: os_user(),
            home: std::env::home_dir(),
            socket_directory: socket_directory.unwrap_or_else(|| PathBuf::from("/tmp")),
        }
    }

    fn get(&self, name: &str) -> Result<Option<&str>, SettingsError> {
        match self.variables.get(name).map(|value| value.to_str()) {
            None | Some(Some("")) => Ok(None),
            Some(Some(value)) => Ok(Some(value)),
            Some(None) => Err(SettingsError::NotUnicode { name: name.to_owned() }),
        }
    }
}

/// `id` asks whatever the machine asks (LDAP, sssd), which /etc/passwd alone does not.
fn os_user() -> Option<String> {
    let from_id = || {
        let output = std::process::Command::new("id").arg("-un").output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !name.is_empty()).then_some(name)
    };
    from_id().or_else(|| {
        ["USER", "LOGNAME", "USERNAME"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    })
}

/// The resolved answer. `Display` gives it for the log: where, as whom, named by what; no password.
#[derive(Debug, Clone)]
pub struct DatabaseSettings {
    pub target: Target,
    pub source: Source,
    /// What was passed over (an open password file); for the log.
    pub warnings: Vec<String>,
    places: Vec<Place>,
    passfile: Option<Passfile>,
}

impl DatabaseSettings {
    /// Reads this process's environment and files. `flag` is the value of `--database-url`.
    pub fn resolve(flag: Option<&str>) -> Result<DatabaseSettings, SettingsError> {
        Self::resolve_in(flag, &Environment::of_process())
    }

    pub fn resolve_in(flag: Option<&str>, environment: &Environment) -> Result<DatabaseSettings, SettingsError> {
        let (source, explicit) = choose(flag, environment)?;
        let mut parameters = explicit;
        service::add_service(&mut parameters, environment)?;
        add_variables(&mut parameters, environment)?;
        build(source, &parameters, environment)
    }

    /// The password file's word for another role on the same server and database: job types' read roles log in so.
    pub fn password_for(&self, user: &str) -> Option<String> {
        self.look_up(self.target.config().get_dbname()?, user).ok().flatten()
    }

    fn look_up(&self, database: &str, user: &str) -> Result<Option<String>, PassfileError> {
        let Some(passfile) = &self.passfile else {
            return Ok(None);
        };
        for place in &self.places {
            let found =
                passfile.password_for(Login { host: &place.passfile_name, port: place.port, database, user })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

impl fmt::Display for DatabaseSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (from {})", redacted(self.target.config()), self.source)
    }
}

/// The password for a login, by libpq's rules for where the password file is (`PGPASSFILE`, else `~/.pgpass`).
pub fn password_for(login: Login<'_>, environment: &Environment) -> Result<Option<String>, PassfileError> {
    match default_passfile(environment) {
        Some(passfile) => passfile.password_for(login),
        None => Ok(None),
    }
}

/// `user@host:port,…/database`, and nothing that is secret.
pub fn redacted(config: &tokio_postgres::Config) -> String {
    let ports = config.get_ports();
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
            match host {
                Host::Tcp(name) if name.contains(':') => format!("[{name}]:{port}"),
                Host::Tcp(name) => match config.get_hostaddrs().get(index).map(ToString::to_string) {
                    Some(address) if address != *name => format!("{name}:{port} ({address})"),
                    _ => format!("{name}:{port}"),
                },
                #[cfg(unix)]
                Host::Unix(directory) => format!("{}/.s.PGSQL.{port}", directory.display()),
            }
        })
        .collect();
    let user = config.get_user().unwrap_or("?");
    let database = config.get_dbname().unwrap_or(user);
    format!("database {database} as {user} at {}", hosts.join(", "))
}

fn choose(flag: Option<&str>, environment: &Environment) -> Result<(Source, Parameters), SettingsError> {
    let given = match flag.filter(|flag| !flag.is_empty()) {
        Some(flag) => Some((Source::Flag, flag)),
        None => match environment.get("PCFARM_DATABASE_URL")? {
            Some(text) => Some((Source::PcfarmDatabaseUrl, text)),
            None => environment.get("DATABASE_URL")?.map(|text| (Source::DatabaseUrl, text)),
        },
    };
    if let Some((source, text)) = given {
        let parameters = conninfo::parse(text)
            .map_err(|error| SettingsError::Conninfo { source_name: source.to_string(), source: error })?;
        return Ok((source, parameters));
    }
    let names_database = ["PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"];
    for name in names_database {
        if environment.get(name)?.is_some() {
            return Ok((Source::PgVariables, Parameters::new()));
        }
    }
    Ok((Source::Defaults, Parameters::new()))
}

const VARIABLES: &[(&str, &str)] = &[
    ("PGHOST", "host"),
    ("PGHOSTADDR", "hostaddr"),
    ("PGPORT", "port"),
    ("PGDATABASE", "dbname"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGPASSFILE", "passfile"),
    ("PGAPPNAME", "application_name"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGOPTIONS", "options"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGLOADBALANCEHOSTS", "load_balance_hosts"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGSSLCERTMODE", "sslcertmode"),
    ("PGSSLCRL", "sslcrl"),
    ("PGSSLCRLDIR", "sslcrldir"),
    ("PGSSLSNI", "sslsni"),
    ("PGSSLMINPROTOCOLVERSION", "ssl_min_protocol_version"),
    ("PGSSLMAXPROTOCOLVERSION", "ssl_max_protocol_version"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGGSSENCMODE", "gssencmode"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGREQUIREAUTH", "require_auth"),
    ("PGREQUIREPEER", "requirepeer"),
];

fn add_variables(parameters: &mut Parameters, environment: &Environment) -> Result<(), SettingsError> {
    // Where libpq differs: a host that was named is not redirected by an address left over in the environment.
    let host_named = parameters.contains_key("host");
    for (variable, key) in VARIABLES {
        if parameters.contains_key(*key) || (host_named && *key == "hostaddr") {
            continue;
        }
        if let Some(value) = environment.get(variable)? {
            parameters.insert((*key).to_owned(), value.to_owned());
        }
    }
    // libpq's old variable, after PGSSLMODE.
    if !parameters.contains_key("sslmode")
        && environment.get("PGREQUIRESSL")?.is_some_and(|value| value.starts_with('1'))
    {
        parameters.insert("sslmode".to_owned(), "require".to_owned());
    }
    Ok(())
}

fn build(
    source: Source,
    parameters: &Parameters,
    environment: &Environment,
) -> Result<DatabaseSettings, SettingsError> {
    let get = |key: &str| parameters.get(key).map(String::as_str);
    let places = places::places(parameters, environment)?;
    let encryption = encryption::encryption(parameters, &places, environment)?;
    let user = get("user").or(environment.os_user.as_deref()).ok_or(SettingsError::NoUser)?;
    let database = get("dbname").unwrap_or(user);
    let passfile = match get("passfile") {
        Some(path) => Some(Passfile::new(PathBuf::from(path))),
        None => default_passfile(environment),
    };
    let mut warnings = Vec::new();
    check_files(&encryption, &mut warnings)?;
    let mut config = config(parameters, &places)?;
    config.user(user).dbname(database);
    let target = Target::new(config, encryption);
    let mut settings = DatabaseSettings { target, source, warnings, places, passfile };
    if get("password").is_some() {
        return Ok(settings);
    }
    match settings.look_up(database, user) {
        Ok(Some(password)) => {
            settings.target = settings.target.with(|config| {
                config.password(password);
            })
        }
        Ok(None) => (),
        Err(error) => settings.warnings.push(with_cause(&error)),
    }
    Ok(settings)
}

/// Connecting reads the files each time; the first look is now. Without them `allow` and `prefer` go on in plain.
fn check_files(encryption: &Encryption, warnings: &mut Vec<String>) -> Result<(), SettingsError> {
    if let Some(path) = encryption.missing_roots() {
        warnings.push(format!(
            "sslrootcert={} does not exist: with sslmode={} the server's certificate is not checked",
            path.display(),
            encryption.mode
        ));
    }
    match encryption.check() {
        Err(error) if encryption.mode < Mode::Require => warnings.push(with_cause(&error)),
        checked => checked?,
    }
    Ok(())
}

/// Parameters that tokio-postgres reads as libpq does.
const PASSED: &[&str] = &[
    "application_name",
    "channel_binding",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "options",
    "password",
    "sslnegotiation",
];

fn config(parameters: &Parameters, places: &[Place]) -> Result<tokio_postgres::Config, SettingsError> {
    let mut given: Vec<(&str, &str)> = Vec::new();
    given.extend(parameters.get("fallback_application_name").map(|name| ("application_name", name.as_str())));
    given.extend(PASSED.iter().filter_map(|name| Some((*name, parameters.get(*name)?.as_str()))));
    given.extend(parameters.get("keepalives_count").map(|count| ("keepalives_retries", count.as_str())));
    given.extend(parameters.get("target_session_attrs").map(|wanted| ("target_session_attrs", session_attrs(wanted))));
    let mut text = String::new();
    for (name, value) in given {
        let one = format!("{name}='{}' ", value.replace('\\', "\\\\").replace('\'', "\\'"));
        one.parse::<tokio_postgres::Config>()
            .map_err(|source| SettingsError::Parameter { name: name.to_owned(), source })?;
        text.push_str(&one);
    }
    let mut config: tokio_postgres::Config =
        text.parse().map_err(|source| SettingsError::Parameter { name: "the address".to_owned(), source })?;
    // Zero and less, which are given, ask for no limit; the pool and `Target::connect` still have theirs.
    if !parameters.contains_key("connect_timeout") {
        config.connect_timeout(if places.len() > 1 { HOST_TIMEOUT } else { CONNECT_TIMEOUT });
    }
    // tokio-postgres takes it for seconds.
    if let Some(text) = parameters.get("tcp_user_timeout") {
        let milliseconds: i32 = text.trim().parse().map_err(|_| wrong("tcp_user_timeout", "a whole number"))?;
        if let Ok(milliseconds @ 1..) = u64::try_from(milliseconds) {
            config.tcp_user_timeout(Duration::from_millis(milliseconds));
        }
    }
    for place in places {
        match &place.host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(directory) => config.host_path(directory),
        };
        if let Some(address) = place.address {
            config.hostaddr(address);
        }
        config.port(place.port);
    }
    Ok(config)
}

/// tokio-postgres knows three of libpq's six.
fn session_attrs(wanted: &str) -> &str {
    match wanted {
        "primary" => "read-write",
        "standby" => "read-only",
        "prefer-standby" => "any",
        other => other,
    }
}

fn default_passfile(environment: &Environment) -> Option<Passfile> {
    let path = match environment.variables.get("PGPASSFILE") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => environment.home.as_ref()?.join(".pgpass"),
    };
    Some(Passfile::new(path))
}

fn wrong(name: &str, expected: &'static str) -> SettingsError {
    SettingsError::Value { name: name.to_owned(), expected }
}

#[cfg(test)]
mod tests;
