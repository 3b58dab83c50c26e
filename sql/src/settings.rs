//! Where the database is: `--database-url`, else `PCFARM_DATABASE_URL`, else `DATABASE_URL`, else libpq's `PG*` variables;
//! what the chosen one leaves open is filled as libpq fills it (service file, `PG*`, defaults, password file), so that
//! what works with psql works here. tokio-postgres reads none of these. This module reads the environment once, writes
//! nothing, and never prints a password.

mod conninfo;
mod passfile;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

pub use conninfo::ConninfoError;
use conninfo::Parameters;
pub use passfile::{Login, Passfile, PassfileError};

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
    #[error(
        "{name}={value} asks for an encrypted connection, which PC Farm cannot make yet: use sslmode=disable or prefer on a \
         network you trust, a Unix socket, or a tunnel (ssh -L, stunnel) to the database server"
    )]
    Encryption { name: &'static str, value: String },
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
    pub config: tokio_postgres::Config,
    pub source: Source,
    /// What was passed over (an open password file); for the log.
    pub warnings: Vec<String>,
    places: Vec<Place>,
    passfile: Option<Passfile>,
}

/// One host and port with the name that password files know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    host: Host,
    port: u16,
    passfile_name: String,
}

impl DatabaseSettings {
    /// Reads this process's environment and files. `flag` is the value of `--database-url`.
    pub fn resolve(flag: Option<&str>) -> Result<DatabaseSettings, SettingsError> {
        Self::resolve_in(flag, &Environment::of_process())
    }

    pub fn resolve_in(flag: Option<&str>, environment: &Environment) -> Result<DatabaseSettings, SettingsError> {
        let (source, explicit) = choose(flag, environment)?;
        let mut parameters = explicit;
        add_service(&mut parameters, environment)?;
        add_variables(&mut parameters, environment)?;
        build(source, &parameters, environment)
    }

    /// The password file's word for another role on the same server and database: job types' read roles log in so.
    pub fn password_for(&self, user: &str) -> Option<String> {
        self.look_up(self.config.get_dbname()?, user).ok().flatten()
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
        write!(f, "{} (from {})", redacted(&self.config), self.source)
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
                Host::Tcp(name) => format!("{name}:{port}"),
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

/// A named service fills what was not said outright; it stands above the `PG*` variables.
fn add_service(parameters: &mut Parameters, environment: &Environment) -> Result<(), SettingsError> {
    let service = match parameters.get("service") {
        Some(service) => service.clone(),
        None => match environment.get("PGSERVICE")? {
            Some(service) => service.to_owned(),
            None => return Ok(()),
        },
    };
    let own = match environment.get("PGSERVICEFILE")? {
        Some(path) => Some(PathBuf::from(path)),
        None => environment.home.as_ref().map(|home| home.join(".pg_service.conf")),
    };
    let system = environment.get("PGSYSCONFDIR")?.unwrap_or("/etc/postgresql-common");
    let files: Vec<PathBuf> = own.into_iter().chain([PathBuf::from(system).join("pg_service.conf")]).collect();
    for path in &files {
        if let Some(found) = service_in(path, &service)? {
            for (key, value) in found {
                parameters.entry(key).or_insert(value);
            }
            return Ok(());
        }
    }
    Err(SettingsError::NoService { service, files })
}

fn service_in(path: &PathBuf, service: &str) -> Result<Option<Parameters>, SettingsError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(SettingsError::ServiceFile { path: path.clone(), source });
        }
    };
    let mut found: Option<Parameters> = None;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            found = (name.trim_end_matches(']') == service).then(Parameters::new);
            continue;
        }
        if let Some(parameters) = &mut found {
            match line.split_once('=') {
                Some((key, value)) if conninfo::is_known(key) && key != "service" => {
                    parameters.insert(key.to_owned(), value.to_owned());
                }
                _ => {
                    return Err(SettingsError::ServiceLine { path: path.clone(), line: index + 1 });
                }
            }
        }
    }
    Ok(found)
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
    Ok(())
}

fn build(
    source: Source,
    parameters: &Parameters,
    environment: &Environment,
) -> Result<DatabaseSettings, SettingsError> {
    let get = |key: &str| parameters.get(key).map(String::as_str);
    let places = places(parameters, environment)?;
    refuse_what_we_cannot_obey(parameters, &places)?;

    let mut config = tokio_postgres::Config::new();
    for place in &places {
        match &place.host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(directory) => config.host_path(directory),
        };
        config.port(place.port);
    }
    let user = get("user").or(environment.os_user.as_deref()).ok_or(SettingsError::NoUser)?;
    let database = get("dbname").unwrap_or(user);
    config.user(user).dbname(database).ssl_mode(SslMode::Disable);
    if let Some(options) = get("options") {
        config.options(options);
    }
    if let Some(name) = get("application_name").or(get("fallback_application_name")) {
        config.application_name(name);
    }
    config.target_session_attrs(match get("target_session_attrs") {
        None | Some("any" | "prefer-standby") => TargetSessionAttrs::Any,
        Some("read-write" | "primary") => TargetSessionAttrs::ReadWrite,
        Some("read-only" | "standby") => TargetSessionAttrs::ReadOnly,
        Some(_) => {
            return Err(wrong("target_session_attrs", "one of any, read-write, primary"));
        }
    });
    config.load_balance_hosts(match get("load_balance_hosts") {
        None | Some("disable") => LoadBalanceHosts::Disable,
        Some("random") => LoadBalanceHosts::Random,
        Some(_) => return Err(wrong("load_balance_hosts", "disable or random")),
    });
    set_timeouts(&mut config, parameters)?;

    let passfile = match get("passfile") {
        Some(path) => Some(Passfile::new(PathBuf::from(path))),
        None => default_passfile(environment),
    };
    let mut settings = DatabaseSettings { config, source, warnings: Vec::new(), places, passfile };
    if let Some(password) = get("password") {
        settings.config.password(password);
        return Ok(settings);
    }
    match settings.look_up(database, user) {
        Ok(Some(password)) => drop(settings.config.password(password)),
        Ok(None) => (),
        Err(error) => settings.warnings.push(with_causes(&error)),
    }
    Ok(settings)
}

fn default_passfile(environment: &Environment) -> Option<Passfile> {
    let path = match environment.variables.get("PGPASSFILE") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => environment.home.as_ref()?.join(".pgpass"),
    };
    Some(Passfile::new(path))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Joins the comma lists of hosts, addresses and ports.
fn places(parameters: &Parameters, environment: &Environment) -> Result<Vec<Place>, SettingsError> {
    let list = |key: &str| -> Vec<&str> {
        let values = parameters.get(key).map(|value| value.split(',').map(str::trim).collect());
        values.unwrap_or_default()
    };
    let addresses = list("hostaddr");
    let mut hosts = list("host");
    if hosts.is_empty() {
        hosts = vec![""; addresses.len().max(1)];
    }
    if !addresses.is_empty() && addresses.len() != hosts.len() {
        return Err(SettingsError::AddressCount { hosts: hosts.len(), addresses: addresses.len() });
    }
    let ports = list("port");
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(SettingsError::PortCount { hosts: hosts.len(), ports: ports.len() });
    }
    let mut places = Vec::with_capacity(hosts.len());
    for (index, name) in hosts.into_iter().enumerate() {
        let port = match ports.get(index).or(ports.first()).copied().unwrap_or("") {
            "" => DEFAULT_PORT,
            text => match text.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err(wrong("port", "a number from 1 to 65535")),
            },
        };
        places.push(place(name, addresses.get(index).copied().unwrap_or(""), port, environment)?);
    }
    Ok(places)
}

/// An address replaces the name it stands beside: without TLS nothing but the password file needs the name.
fn place(name: &str, address: &str, port: u16, environment: &Environment) -> Result<Place, SettingsError> {
    if !address.is_empty() {
        let address: std::net::IpAddr = address.parse().map_err(|_| wrong("hostaddr", "a list of IP addresses"))?;
        let address = address.to_string();
        let passfile_name = if name.is_empty() { address.clone() } else { name.to_owned() };
        return Ok(Place { host: Host::Tcp(address), port, passfile_name });
    }
    if name.starts_with('@') {
        return Err(SettingsError::Unsupported { name: "host", value: name.to_owned() });
    }
    #[cfg(unix)]
    if name.is_empty() || name.starts_with('/') {
        let is_default = name.is_empty() || environment.socket_directory.as_os_str() == name;
        let directory = match name {
            "" => environment.socket_directory.clone(),
            path => PathBuf::from(path),
        };
        return Ok(Place {
            host: Host::Unix(directory),
            port,
            passfile_name: if is_default { "localhost" } else { name }.to_owned(),
        });
    }
    #[cfg(not(unix))]
    let _ = environment;
    let name = if name.is_empty() { "localhost" } else { name };
    Ok(Place { host: Host::Tcp(name.to_owned()), port, passfile_name: name.to_owned() })
}

/// What asks for more protection than we have is refused, not ignored. As in libpq, TLS does not concern Unix sockets.
fn refuse_what_we_cannot_obey(parameters: &Parameters, places: &[Place]) -> Result<(), SettingsError> {
    let get = |key: &str| parameters.get(key).map(String::as_str);
    let over_network = places.iter().any(|place| matches!(place.host, Host::Tcp(_)));
    let encryption = |name: &'static str, value: &str| Err(SettingsError::Encryption { name, value: value.to_owned() });
    match get("sslmode") {
        None | Some("disable" | "allow" | "prefer") => (),
        Some(mode @ ("require" | "verify-ca" | "verify-full")) => {
            if over_network {
                return encryption("sslmode", mode);
            }
        }
        Some(_) => {
            return Err(wrong("sslmode", "one of disable, allow, prefer, require, verify-ca, verify-full"));
        }
    }
    if let Some(value @ "require") = get("gssencmode")
        && over_network
    {
        return encryption("gssencmode", value);
    }
    if let Some(value @ "require") = get("channel_binding") {
        return encryption("channel_binding", value);
    }
    if let Some(value @ "direct") = get("sslnegotiation")
        && over_network
    {
        return encryption("sslnegotiation", value);
    }
    for name in ["require_auth", "requirepeer", "replication"] {
        if let Some(value) = get(name) {
            return Err(SettingsError::Unsupported { name, value: value.to_owned() });
        }
    }
    Ok(())
}

fn set_timeouts(config: &mut tokio_postgres::Config, parameters: &Parameters) -> Result<(), SettingsError> {
    let number = |key: &'static str| match parameters.get(key) {
        None => Ok(None),
        Some(text) => match text.trim().parse::<i32>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(wrong(key, "a whole number")),
        },
    };
    let positive = |number: i32| u64::try_from(number).ok().filter(|number| *number > 0);
    match number("connect_timeout")? {
        None => drop(config.connect_timeout(CONNECT_TIMEOUT)),
        // Zero and less ask for no limit; the pool and `connect` still have theirs.
        Some(seconds) => {
            if let Some(seconds) = positive(seconds) {
                config.connect_timeout(Duration::from_secs(seconds));
            }
        }
    }
    if let Some(milliseconds) = number("tcp_user_timeout")?.and_then(positive) {
        config.tcp_user_timeout(Duration::from_millis(milliseconds));
    }
    if let Some(on) = number("keepalives")? {
        config.keepalives(on != 0);
    }
    if let Some(seconds) = number("keepalives_idle")?.and_then(positive) {
        config.keepalives_idle(Duration::from_secs(seconds));
    }
    if let Some(seconds) = number("keepalives_interval")?.and_then(positive) {
        config.keepalives_interval(Duration::from_secs(seconds));
    }
    if let Some(count) = number("keepalives_count")?.and_then(|count| u32::try_from(count).ok()) {
        config.keepalives_retries(count);
    }
    Ok(())
}

fn wrong(name: &str, expected: &'static str) -> SettingsError {
    SettingsError::Value { name: name.to_owned(), expected }
}

#[cfg(test)]
mod tests;
