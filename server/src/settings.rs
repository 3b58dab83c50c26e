//! What the server is told: flags over `PCFARM_*` variables over a TOML file over defaults. Filled once, checked whole.

use crate::accept::Limits;
use crate::access::Asks;
use crate::alerts::mail::Mailer;
use crate::authority::Files;
use crate::farm::Rhythm;
use crate::missing::TRACES;
use crate::originals::kept::Choice;
use crate::outward::Outward;
use crate::s3;
use crate::traces;
use crate::traces::settings::Wanted;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use pcfarm_proxy::reach::{Network, NotANetwork};
use serde::Deserialize;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Loopback: others are let in with certificates, or on purpose.
const DEFAULT_LISTEN: &str = "127.0.0.1:7070";

/// Two beats may be lost and a third be late before a lease of 20 s is over; a beat of who holds nothing may be late by half a lease.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Long enough that handing out costs nothing, short enough that little is lost with a workstation.
const DEFAULT_CHECKOUT: Duration = Duration::from_secs(15);

/// Larger checkouts save nothing that can be measured, and a lost one is so much to do again.
const DEFAULT_CHECKOUT_PROBLEMS: u32 = 10_000;

/// A dispatcher, the acceptor's lines, watching, upkeep and a few people; far below PostgreSQL's default of 100.
const DEFAULT_POOL_SIZE: usize = 16;

/// The dispatcher, the acceptor and submissions keep seven of them, and three others one each: somebody has to have the rest.
const LEAST_POOL_SIZE: usize = 13;

/// Ten thousand workstations, people, and connections that their workstations have replaced but that nobody has closed
/// yet. More is a matter of memory: a connection costs some 100 KiB.
const DEFAULT_CONNECTIONS: usize = 12_000;

/// Workstations have an address each, but a whole building may be behind one; less than a tenth of all, so that
/// one program that has gone astray does not keep the others out.
const DEFAULT_CONNECTIONS_PER_ADDRESS: usize = 1_000;

/// A workstation that is stolen or forgotten is none of the farm's a day later, and one that was off for a night renews.
const DEFAULT_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(24 * 3600);
const CERTIFICATE_LIFETIMES: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(90 * 24 * 3600);

/// Where `--embedded` keeps its cluster when it is not told and runs as root.
const ROOT_EMBEDDED: &str = "/var/lib/pcfarm";

#[derive(Debug, Parser)]
#[command(name = "pcfarm-server", version, about = "PC Farm's server: hands out convoys of problems, accepts results")]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make the farm's authority, this server's certificate, and the first administrator
    Init(InitArguments),
}

/// What `init` is told.
#[derive(Debug, Args)]
struct InitArguments {
    /// Where the certificates and keys are to be
    #[arg(long, env = "PCFARM_TLS", value_name = "DIR", required_unless_present = "print_sql")]
    tls: Option<PathBuf>,
    /// Print the SQL that an administrator of the database server runs before the first start, and do nothing else
    #[arg(long, conflicts_with_all = ["administrator", "embedded"])]
    print_sql: bool,
    /// A name or address by which others reach this server, beside the host's own; several by commas or by repeating it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    name: Vec<String>,
    /// Make this user an administrator, and print a token for it, once
    #[arg(long, value_name = "USER")]
    administrator: Option<String>,
    /// The database [default: PCFARM_DATABASE_URL, DATABASE_URL or libpq's PG* variables]
    #[arg(long, value_name = "URL", conflicts_with = "embedded")]
    database_url: Option<String>,
    /// The server's private PostgreSQL is in this directory; the server is not running
    #[arg(long, env = "PCFARM_EMBEDDED", value_name = "DIR", num_args = 0..=1, default_missing_value = "")]
    embedded: Option<String>,
}

/// Who is let in without showing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Authentication {
    /// Nobody
    Required,
    /// Until there are accounts, whoever is on this machine, to do everything; then, to work as an agent
    LoopbackOpen,
}

#[derive(Debug, Args)]
struct Flags {
    /// A TOML file with these settings; names are those of the flags, with underscores
    #[arg(long, env = "PCFARM_SERVER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The database [default: PCFARM_DATABASE_URL, DATABASE_URL or libpq's PG* variables]
    #[arg(long, value_name = "URL", conflicts_with = "embedded")]
    database_url: Option<String>,
    /// Run a private PostgreSQL in this directory, with the programs found on this machine
    #[arg(long, env = "PCFARM_EMBEDDED", value_name = "DIR", num_args = 0..=1, default_missing_value = "")]
    embedded: Option<String>,
    /// Address and port to listen on [default: 127.0.0.1:7070]
    #[arg(long, env = "PCFARM_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Address and port of REST, metrics and health; same: that of --listen, told from gRPC; or none [default: same]
    #[arg(long, env = "PCFARM_HTTP_LISTEN", value_name = "ADDRESS")]
    http_listen: Option<String>,
    /// Listen on an address that others can reach, without encryption, and let in whoever comes until there are accounts
    #[arg(long, env = "PCFARM_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    insecure: bool,
    /// Who is asked for a token or a certificate [default: loopback-open on a loopback address, else required]
    #[arg(long, env = "PCFARM_AUTHENTICATION", value_enum, value_name = "RULE")]
    authentication: Option<Authentication>,
    /// Speak TLS, with the certificates and keys that `pcfarm-server init` has made in this directory
    #[arg(long, env = "PCFARM_TLS", value_name = "DIR")]
    tls: Option<PathBuf>,
    /// Show this certificate (and those between it and its authority) instead of the directory's
    #[arg(long, env = "PCFARM_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, env = "PCFARM_TLS_KEY", value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// How long certificates of workstations hold; they renew them at two thirds of it [default: 24h]
    #[arg(long, env = "PCFARM_CERTIFICATE_LIFETIME", value_name = "DURATION", value_parser = duration)]
    certificate_lifetime: Option<Duration>,
    /// Let people make accounts of their own
    #[arg(long, env = "PCFARM_REGISTRATION", value_parser = clap::builder::BoolishValueParser::new())]
    registration: bool,
    /// How long a workstation may be silent before it is dead [default: 20s]
    #[arg(long, env = "PCFARM_LEASE", value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// How often agents say that they live while they hold something, and half as often else [default: 5s]
    #[arg(long, env = "PCFARM_HEARTBEAT", value_name = "DURATION", value_parser = duration)]
    heartbeat: Option<Duration>,
    /// How much work one checkout should be [default: 15s]
    #[arg(long, env = "PCFARM_CHECKOUT_SECONDS", value_name = "DURATION", value_parser = duration)]
    checkout_seconds: Option<Duration>,
    /// Most problems of one checkout, unless a single convoy has more [default: 10000]
    #[arg(long, env = "PCFARM_CHECKOUT_PROBLEMS", value_name = "N")]
    checkout_problems: Option<u32>,
    /// Connections to the database, at least 13 [default: 16]
    #[arg(long, env = "PCFARM_POOL_SIZE", value_name = "N")]
    pool_size: Option<usize>,
    /// Most connections of agents and people at a time [default: 12000]
    #[arg(long, env = "PCFARM_CONNECTIONS", value_name = "N")]
    connections: Option<usize>,
    /// Most of them from one address [default: 1000]
    #[arg(long, env = "PCFARM_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    connections_per_address: Option<usize>,
    /// This server's name, for people [default: the host's name]
    #[arg(long, env = "PCFARM_NAME", value_name = "NAME")]
    name: Option<String>,
    /// Keep uploads in a directory that all servers share, or in s3://BUCKET/PREFIX, and not in the database
    #[arg(long, env = "PCFARM_ORIGINALS", value_name = "WHERE")]
    originals: Option<String>,
    /// The store of that bucket [default: Amazon's of the region]
    #[arg(long, env = "AWS_ENDPOINT_URL", value_name = "URL")]
    s3_endpoint: Option<String>,
    /// The region of that bucket [default: us-east-1 where an endpoint is named]
    #[arg(long, env = "AWS_REGION", value_name = "REGION")]
    s3_region: Option<String>,
    /// A file with keys to that bucket [default: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY]
    #[arg(long, env = "AWS_SHARED_CREDENTIALS_FILE", value_name = "FILE")]
    s3_credentials: Option<PathBuf>,
    /// Leave recycling to pcfarm-recycler or to other servers
    #[arg(long, env = "PCFARM_NO_RECYCLER", value_parser = clap::builder::BoolishValueParser::new())]
    no_recycler: bool,
    /// The relay that mails alerts: smtp://user:password@host:587, encrypted by STARTTLS, or smtps://
    #[arg(long, env = "PCFARM_SMTP_URL", value_name = "URL", hide_env_values = true)]
    smtp_url: Option<String>,
    /// Whom mails are from: farm@example.org, or 'PC Farm <farm@example.org>'
    #[arg(long, env = "PCFARM_MAIL_FROM", value_name = "ADDRESS")]
    mail_from: Option<String>,
    /// Send traces to this collector, by OTLP over gRPC: http://collector:4317, or none [default: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, env = "PCFARM_TRACES", value_name = "URL")]
    traces: Option<String>,
    /// The name that relays of mail are greeted with (EHLO) [default: the host's name]
    #[arg(long, env = "PCFARM_MAIL_HELLO", value_name = "NAME")]
    mail_hello: Option<String>,
    /// The HTTP proxy of webhooks, the store of uploads and the collector of traces: http://proxy.example.org:3128, or none
    /// [default: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY]; NO_PROXY names exceptions
    #[arg(long, env = "PCFARM_PROXY", value_name = "URL", hide_env_values = true)]
    proxy: Option<String>,
    /// Authorities that webhooks, mail, the store of uploads and the collector of traces may be vouched for by, beside the system's: a
    /// PEM file
    #[arg(long, env = "PCFARM_OUTGOING_CA", value_name = "FILE")]
    outgoing_ca: Option<PathBuf>,
    /// Networks that webhooks may reach beside public addresses, such as 10.20.0.0/16: any user may set a webhook, and so make
    /// this server send requests there; several by commas [default: none]
    #[arg(long, env = "PCFARM_WEBHOOK_NETWORKS", value_name = "NETWORKS", value_delimiter = ',')]
    webhook_networks: Option<Vec<String>>,
}

/// The file's form of the same.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    database_url: Option<String>,
    embedded: Option<String>,
    listen: Option<SocketAddr>,
    http_listen: Option<String>,
    insecure: Option<bool>,
    authentication: Option<Authentication>,
    tls: Option<PathBuf>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    certificate_lifetime: Option<String>,
    registration: Option<bool>,
    lease: Option<String>,
    heartbeat: Option<String>,
    checkout_seconds: Option<String>,
    checkout_problems: Option<u32>,
    pool_size: Option<usize>,
    connections: Option<usize>,
    connections_per_address: Option<usize>,
    name: Option<String>,
    originals: Option<String>,
    s3_endpoint: Option<String>,
    s3_region: Option<String>,
    s3_credentials: Option<PathBuf>,
    no_recycler: Option<bool>,
    smtp_url: Option<String>,
    mail_from: Option<String>,
    traces: Option<String>,
    mail_hello: Option<String>,
    proxy: Option<String>,
    outgoing_ca: Option<PathBuf>,
    webhook_networks: Option<Vec<String>>,
}

/// Which database.
#[derive(Clone, Debug)]
pub enum Database {
    /// What was said; the environment's word goes between the two.
    Url { flag: Option<String>, file: Option<String> },
    /// A private cluster.
    Embedded(PathBuf),
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub database: Database,
    pub listen: SocketAddr,
    pub http_listen: HttpListen,
    /// Whether those who show nothing are let in.
    pub asks: Asks,
    /// None: everything is said in the clear.
    pub tls: Option<Files>,
    /// Of workstations.
    pub certificate_lifetime: Duration,
    /// Whether people may make themselves accounts.
    pub registration: bool,
    pub rhythm: Rhythm,
    pub pool_size: usize,
    pub connections: Limits,
    pub name: String,
    pub recycler: bool,
    pub originals: Choice,
    /// None: this server mails nothing.
    pub mailer: Option<Arc<Mailer>>,
    /// None: no spans are made.
    pub traces: Option<Wanted>,
    /// Proxies and authorities of outgoing connections.
    pub outward: Outward,
}

/// Where REST, metrics and health are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpListen {
    Nowhere,
    /// On the port of gRPC.
    Same,
    /// On a port of their own, such as one that a proxy for browsers alone may reach.
    At(SocketAddr),
}

/// What `pcfarm-server init` is to make, and where.
#[derive(Clone, Debug)]
pub struct Init {
    /// Without it nothing is made, and the administrator's SQL is printed.
    pub tls: Option<PathBuf>,
    pub names: Vec<String>,
    pub administrator: Option<String>,
    pub database: Database,
}

/// What this program was started for.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of it")]
pub enum Asked {
    Serve(Settings),
    Init(Init),
}

/// Settings that make no sense, or a call for help: printed, with its exit code.
#[derive(Debug)]
pub struct WrongUsage(clap::Error);

impl WrongUsage {
    pub fn report(&self) -> ExitCode {
        drop(self.0.print());
        ExitCode::from(u8::try_from(self.0.exit_code()).unwrap_or(2))
    }
}

impl Asked {
    pub fn read() -> Result<Asked, WrongUsage> {
        let Arguments { verb, flags: arguments } = Arguments::try_parse().map_err(WrongUsage)?;
        if let Some(Verb::Init(init)) = verb {
            return prepared(init).map(Asked::Init).map_err(wrong);
        }
        let file = match &arguments.config {
            Some(path) => read_file(path).map_err(wrong)?,
            None => File::default(),
        };
        check(arguments, file).map(Asked::Serve).map_err(wrong)
    }
}

fn prepared(arguments: InitArguments) -> Result<Init, String> {
    let InitArguments { tls, print_sql, name, administrator, database_url, embedded } = arguments;
    let tls = tls.filter(|_| !print_sql);
    let database = match embedded {
        Some(directory) => Database::Embedded(embedded_directory(&directory)?),
        None => Database::Url { flag: database_url, file: None },
    };
    // By which this machine reaches itself, and others may.
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(ToOwned::to_owned).to_vec();
    for name in std::iter::once(host_name()).chain(name) {
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(Init { tls, names, administrator, database })
}

fn wrong(message: String) -> WrongUsage {
    WrongUsage(clap::Error::raw(ErrorKind::ValueValidation, message + "\n"))
}

fn read_file(path: &PathBuf) -> Result<File, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// `15s`, `2m`, or a number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| s.is_finite() && *s >= 0.0).map(Duration::from_secs_f64);
    let duration = match seconds {
        Some(seconds) => seconds,
        None => {
            humantime::parse_duration(text).map_err(|error| format!("{error}; write 15s, 2m or a number of seconds"))?
        }
    };
    if duration.is_zero() { Err("it must be longer than nothing".to_owned()) } else { Ok(duration) }
}

fn check(arguments: Flags, file: File) -> Result<Settings, String> {
    let rhythm = rhythm(&arguments, &file)?;
    let certificate_lifetime = certificate_lifetime(&arguments, &file)?;
    let connections = connections(&arguments, &file)?;
    let listen = match arguments.listen.or(file.listen) {
        Some(listen) => listen,
        None => DEFAULT_LISTEN.parse().expect("a constant"),
    };
    let http_listen = http_listen(arguments.http_listen.or(file.http_listen).as_deref())?;
    let tls = arguments.tls.or(file.tls).map(|directory| Files {
        directory,
        certificate: arguments.tls_certificate.or(file.tls_certificate),
        key: arguments.tls_key.or(file.tls_key),
    });
    if tls.as_ref().is_some_and(|files| files.certificate.is_some() != files.key.is_some()) {
        return Err("tls_certificate and tls_key: one does not do without the other".to_owned());
    }
    let insecure = arguments.insecure || file.insecure.unwrap_or(false);
    let of_rest = if let HttpListen::At(address) = http_listen { Some(address) } else { None };
    let reachable = [Some(listen), of_rest].into_iter().flatten().find(|address| !address.ip().is_loopback());
    if let Some(listen) = reachable.filter(|_| tls.is_none() && !insecure) {
        return Err(format!(
            "{listen} can be reached by others, and what is said there by everybody who listens in: make certificates with \
             `pcfarm-server init --tls DIR` and say --tls DIR, listen on 127.0.0.1, or say --insecure on a network that \
             you trust"
        ));
    }
    let asks = match arguments.authentication.or(file.authentication) {
        Some(Authentication::Required) => Asks::Always,
        Some(Authentication::LoopbackOpen) => Asks::Strangers,
        None if insecure => Asks::Nobody,
        None if listen.ip().is_loopback() => Asks::Strangers,
        None => Asks::Always,
    };
    let embedded = arguments.embedded.or(if arguments.database_url.is_some() { None } else { file.embedded });
    let database = match embedded {
        Some(directory) => Database::Embedded(embedded_directory(&directory)?),
        None => Database::Url { flag: arguments.database_url, file: file.database_url },
    };
    let originals = originals(
        arguments.originals.or(file.originals),
        arguments.s3_endpoint.or(file.s3_endpoint),
        arguments.s3_region.or(file.s3_region),
        arguments.s3_credentials.or(file.s3_credentials),
    )?;
    // A variable that is no text is none that OpenTelemetry knows.
    let collector = arguments.traces.or(file.traces);
    let traces = traces::settings::wanted(collector.as_deref(), |name| std::env::var(name).ok())?;
    // Variables may be meant for other programs: they get a warning.
    if cfg!(not(feature = "traces")) && collector.is_some() && traces.is_some() {
        return Err(format!("traces: {TRACES}"));
    }
    let ca = arguments.outgoing_ca.or(file.outgoing_ca);
    let proxy = arguments.proxy.or(file.proxy);
    let outward = Outward::of(proxy.as_deref(), ca.as_deref(), |name| std::env::var(name).ok())?;
    let outward = outward.with_webhook_networks(networks(arguments.webhook_networks.or(file.webhook_networks))?);
    let mail = (arguments.smtp_url.or(file.smtp_url), arguments.mail_from.or(file.mail_from));
    let hello = arguments.mail_hello.or(file.mail_hello);
    Ok(Settings {
        database,
        listen,
        http_listen,
        asks,
        tls,
        certificate_lifetime,
        registration: arguments.registration || file.registration.unwrap_or(false),
        rhythm,
        pool_size: arguments.pool_size.or(file.pool_size).unwrap_or(DEFAULT_POOL_SIZE).max(LEAST_POOL_SIZE),
        connections,
        name: arguments.name.or(file.name).unwrap_or_else(host_name),
        originals,
        recycler: !(arguments.no_recycler || file.no_recycler.unwrap_or(false)),
        mailer: mailer(mail, hello.as_deref(), &outward)?,
        traces,
        outward,
    })
}

fn networks(texts: Option<Vec<String>>) -> Result<Vec<Network>, String> {
    let parsed = texts.unwrap_or_default();
    let parsed = parsed.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).map(str::parse);
    parsed.collect::<Result<_, NotANetwork>>().map_err(|error| format!("webhook_networks: {error}"))
}

/// A flag's, or else the file's, which is text there.
fn span(flag: Option<Duration>, name: &str, in_file: Option<&str>) -> Result<Option<Duration>, String> {
    let in_file = in_file.map(duration).transpose().map_err(|error| format!("{name}: {error}"))?;
    Ok(flag.or(in_file))
}

fn rhythm(arguments: &Flags, file: &File) -> Result<Rhythm, String> {
    let lease = span(arguments.lease, "lease", file.lease.as_deref())?.unwrap_or(pcfarm_recycler::DEFAULT_LEASE);
    let heartbeat = span(arguments.heartbeat, "heartbeat", file.heartbeat.as_deref())?;
    let heartbeat = heartbeat.unwrap_or(DEFAULT_HEARTBEAT.min(lease / 4));
    let checkout = span(arguments.checkout_seconds, "checkout_seconds", file.checkout_seconds.as_deref())?;
    let checkout_problems = match arguments.checkout_problems.or(file.checkout_problems) {
        None => DEFAULT_CHECKOUT_PROBLEMS,
        Some(problems @ 1..=100_000) => problems,
        Some(problems) => return Err(format!("checkout_problems is {problems}: let it be 1 to 100000")),
    };
    if lease < SHORTEST_LEASE {
        return Err(format!(
            "a lease of {} is too short to hear anybody in: 1s at least",
            humantime::format_duration(lease)
        ));
    }
    if heartbeat * 2 > lease {
        return Err(format!(
            "a heartbeat of {} leaves no beat to lose in a lease of {}: let it be a quarter of the lease",
            humantime::format_duration(heartbeat),
            humantime::format_duration(lease)
        ));
    }
    let checkout = checkout.unwrap_or(DEFAULT_CHECKOUT);
    Ok(Rhythm { lease, heartbeat, checkout, checkout_problems: checkout_problems as usize })
}

fn certificate_lifetime(arguments: &Flags, file: &File) -> Result<Duration, String> {
    let in_file = file.certificate_lifetime.as_deref();
    let lifetime = span(arguments.certificate_lifetime, "certificate_lifetime", in_file)?;
    let lifetime = lifetime.unwrap_or(DEFAULT_CERTIFICATE_LIFETIME);
    if !CERTIFICATE_LIFETIMES.contains(&lifetime) {
        let lifetime = humantime::format_duration(lifetime);
        return Err(format!("a certificate_lifetime of {lifetime}: let it be 10s to 90d"));
    }
    Ok(lifetime)
}

fn connections(arguments: &Flags, file: &File) -> Result<Limits, String> {
    let per_address = arguments.connections_per_address.or(file.connections_per_address);
    let limits = Limits {
        total: arguments.connections.or(file.connections).unwrap_or(DEFAULT_CONNECTIONS),
        per_address: per_address.unwrap_or(DEFAULT_CONNECTIONS_PER_ADDRESS),
    };
    if limits.total == 0 || limits.per_address == 0 {
        return Err("connections and connections_per_address: without any the server serves nobody".to_owned());
    }
    Ok(limits)
}

/// `relay`: its URL and the sender's address.
fn mailer(
    relay: (Option<String>, Option<String>),
    hello: Option<&str>,
    outward: &Outward,
) -> Result<Option<Arc<Mailer>>, String> {
    match relay {
        (Some(url), Some(from)) => Ok(Some(Arc::new(Mailer::new(&url, &from, hello, outward.pem())?))),
        (None, None) if hello.is_some() => Err("mail_hello: there is no relay to greet: say smtp_url".to_owned()),
        (None, None) => Ok(None),
        (Some(_), None) => Err("smtp_url: mails need a sender, too: say mail_from".to_owned()),
        (None, Some(_)) => Err("mail_from: mails need a relay, too: say smtp_url".to_owned()),
    }
}

/// What is in the environment for other programs is no harm where uploads are kept elsewhere.
fn originals(
    given: Option<String>,
    endpoint: Option<String>,
    region: Option<String>,
    credentials: Option<PathBuf>,
) -> Result<Choice, String> {
    match given {
        None => Ok(Choice::Database),
        Some(address) if address.starts_with("s3://") => {
            let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
            let (endpoint, region) = (said(&endpoint), said(&region));
            let place = s3::Keys::find(credentials)
                .and_then(|keys| s3::Place::parse(&address, endpoint.as_deref(), region.as_deref(), keys));
            place.map(Choice::S3).map_err(|wrong| format!("originals: {address:?}: {wrong}"))
        }
        Some(directory) => Ok(Choice::Directory(PathBuf::from(directory))),
    }
}

fn http_listen(given: Option<&str>) -> Result<HttpListen, String> {
    match given {
        None | Some("same") => Ok(HttpListen::Same),
        Some("none") => Ok(HttpListen::Nowhere),
        Some(address) => address.parse().map(HttpListen::At).map_err(|_| {
            format!("http_listen: {address:?} is not an address and port such as 127.0.0.1:7080, nor same, nor none")
        }),
    }
}

fn embedded_directory(given: &str) -> Result<PathBuf, String> {
    if !given.is_empty() {
        return Ok(PathBuf::from(given));
    }
    let home = std::env::home_dir().ok_or("--embedded needs a directory: there is no home directory to put it in")?;
    if home == std::path::Path::new("/root") {
        return Ok(PathBuf::from(ROOT_EMBEDDED));
    }
    Ok(home.join(".local/share/pcfarm"))
}

fn host_name() -> String {
    hostname::get().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &[&str], file: &str) -> Result<Settings, String> {
        let arguments = Arguments::try_parse_from([&["pcfarm-server"], flags].concat()).map_err(|e| e.to_string())?;
        check(arguments.flags, toml::from_str(file).map_err(|e| e.to_string())?)
    }

    #[test]
    fn flags_go_before_the_file() {
        let settings = read(&["--lease", "8"], "lease = \"1m\"\nheartbeat = \"2s\"").expect("sensible");
        assert_eq!(settings.rhythm.lease, Duration::from_secs(8));
        assert_eq!(settings.rhythm.heartbeat, Duration::from_secs(2));
    }

    #[test]
    fn a_short_lease_brings_its_own_heartbeat() {
        let settings = read(&["--lease", "2s"], "").expect("sensible");
        assert_eq!(settings.rhythm.heartbeat, Duration::from_millis(500));
    }

    #[test]
    fn connections_are_limited_in_all_and_from_one_address() {
        let settings = read(&[], "").expect("sensible");
        assert!(settings.connections.total > 10_000 && settings.connections.per_address < settings.connections.total);
        let settings =
            read(&["--connections", "50"], "connections = 9\nconnections_per_address = 7").expect("sensible");
        assert_eq!((settings.connections.total, settings.connections.per_address), (50, 7));
    }

    #[test]
    fn others_are_let_in_only_on_purpose() {
        assert!(read(&["--listen", "0.0.0.0:7070"], "").expect_err("refused").contains("--insecure"));
        let settings = read(&["--listen", "0.0.0.0:7070", "--insecure"], "").expect("on purpose");
        assert_eq!(settings.asks, Asks::Nobody);
        let settings = read(&["--listen", "0.0.0.0:7070", "--tls", "/etc/pcfarm"], "").expect("encrypted");
        assert_eq!(settings.asks, Asks::Always, "and everybody is asked");
        assert_eq!(read(&[], "").expect("loopback").asks, Asks::Strangers);
        let settings = read(&["--authentication", "required"], "insecure = true").expect("asked all the same");
        assert_eq!(settings.asks, Asks::Always);
        let half = read(&[], "tls = \"/x\"\ntls_key = \"/y\"").expect_err("refused");
        assert!(half.contains("tls_certificate"), "{half}");
        assert!(read(&["--certificate-lifetime", "1s"], "").expect_err("refused").contains("10s"));
    }

    #[test]
    fn a_server_has_the_names_by_which_it_is_reached() {
        let flags = ["pcfarm-server", "init", "--tls", "/x", "--name", "farm.example.org,10.0.0.7", "--embedded", "/y"];
        let Some(Verb::Init(arguments)) = Arguments::try_parse_from(flags).expect("good").verb else { panic!("init") };
        let init = prepared(arguments).expect("good");
        for name in ["localhost", "127.0.0.1", "farm.example.org", "10.0.0.7"] {
            assert!(init.names.iter().any(|known| known == name), "{:?}", init.names);
        }
    }

    #[test]
    fn rest_is_on_the_same_port_on_one_of_its_own_or_nowhere() {
        let of = |flags: &[&str]| read(flags, "").expect("sensible").http_listen;
        assert_eq!(of(&[]), HttpListen::Same);
        assert_eq!(of(&["--http-listen", "same"]), HttpListen::Same);
        assert_eq!(of(&["--http-listen", "none"]), HttpListen::Nowhere);
        assert_eq!(of(&["--http-listen", "[::1]:9"]), HttpListen::At("[::1]:9".parse().expect("an address")));
        assert!(read(&["--http-listen", "here"], "").expect_err("refused").contains("http_listen"));
        assert!(read(&["--http-listen", "0.0.0.0:7080"], "").expect_err("refused").contains("--insecure"));
    }

    #[test]
    fn nonsense_is_named() {
        assert!(read(&["--lease", "2s", "--heartbeat", "2s"], "").expect_err("refused").contains("quarter"));
        assert!(read(&[], "leese = \"1s\"").expect_err("refused").contains("leese"));
        assert!(read(&["--lease", "0"], "").is_err());
        assert!(read(&["--connections", "0"], "").expect_err("refused").contains("nobody"));
        assert!(read(&["--mail-from", "a@b.c"], "").expect_err("refused").contains("smtp_url"));
        assert!(read(&["--mail-hello", "farm"], "").expect_err("refused").contains("smtp_url"));
        let proxy = read(&["--proxy", "socks5://u:hidden@h"], "").expect_err("refused");
        assert!(proxy.starts_with("proxy: socks5") && !proxy.contains("hidden"), "{proxy}");
        assert!(read(&[], "outgoing_ca = \"/nowhere.pem\"").expect_err("refused").contains("/nowhere.pem"));
        let networks = read(&["--webhook-networks", "10.0.0.0/8,10.1.2.3/8"], "").expect_err("refused");
        assert!(networks.starts_with("webhook_networks: \"10.1.2.3/8\""), "{networks}");
        assert!(read(&[], "webhook_networks = [\"10.0.0.0/8\", \"fd12::/16\"]").is_ok());
        assert!(read(&[], "smtp_url = \"smtp://u:hidden@h\"").expect_err("refused").contains("mail_from"));
    }

    #[test]
    fn mail_has_a_relay_and_a_sender() {
        let read = read(&["--mail-from", "a@b.c"], "smtp_url = \"smtp://u:hidden@h\"");
        #[cfg(feature = "mail")]
        {
            let settings = read.expect("sensible");
            assert!(settings.mailer.is_some() && !format!("{settings:?}").contains("hidden"));
        }
        #[cfg(not(feature = "mail"))]
        assert!(read.expect_err("refused").contains("the feature `mail`"));
    }

    #[cfg(not(feature = "traces"))]
    #[test]
    fn a_collector_that_a_setting_names_needs_the_feature() {
        let refused = read(&["--traces", "http://collector:4317"], "").expect_err("refused");
        assert!(refused.starts_with("traces: ") && refused.contains("the feature `traces`"), "{refused}");
        assert!(read(&["--traces", "none"], "").expect("off").traces.is_none());
    }

    #[cfg(not(feature = "object-store"))]
    #[test]
    fn a_store_of_uploads_needs_the_feature() {
        let refused = read(&["--originals", "s3://farm"], "").expect_err("refused");
        assert!(refused.contains("s3://farm") && refused.contains("the feature `object-store`"), "{refused}");
    }

    #[test]
    fn uploads_are_kept_where_it_is_said() {
        assert!(matches!(read(&[], "").expect("sensible").originals, Choice::Database));
        assert!(matches!(
            read(&["--originals", "/srv/uploads"], "").expect("sensible").originals,
            Choice::Directory(_)
        ));
    }

    #[cfg(feature = "object-store")]
    #[test]
    fn uploads_are_kept_in_a_store_with_its_region_and_keys() {
        let file = "originals = \"s3://farm/uploads\"\ns3_endpoint = \"https://store.example.org\"\n\
            s3_credentials = \"/etc/pcfarm/s3\"";
        let settings = read(&[], file).expect("sensible");
        let Choice::S3(place) = &settings.originals else { panic!("{:?}", settings.originals) };
        assert_eq!(place.to_string(), "s3://farm/uploads/ at https://store.example.org (us-east-1)");
        let of = |flags: &[&str]| read(&[&["--originals", "s3://farm", "--s3-credentials", "/x"], flags].concat(), "");
        assert!(of(&[]).expect_err("refused").contains("s3_region"));
        assert!(of(&["--s3-region", "eu-central-1"]).is_ok());
        assert!(of(&["--s3-endpoint", "store.example.org"]).expect_err("refused").contains("s3_endpoint"));
    }

    mod fuzz {
        use super::*;

        /// Settings that can be served with, or what is wrong with them.
        #[test]
        fn a_settings_file() {
            bolero::check!().for_each(|bytes: &[u8]| {
                let Ok(text) = std::str::from_utf8(bytes) else { return };
                match read(&[], text) {
                    Ok(Settings { rhythm, .. }) => {
                        assert!(rhythm.lease >= SHORTEST_LEASE && rhythm.heartbeat * 2 <= rhythm.lease)
                    }
                    Err(wrong) => assert!(!wrong.is_empty()),
                }
            });
        }
    }
}
