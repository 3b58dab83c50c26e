//! The command line. Nothing here does anything.

pub mod access;
pub mod files;
pub mod fleet;
pub mod schedules;
pub mod sharing;
pub mod types;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pcfarm_proto::ids::JobId;

use crate::output::Format;
use access::{CreateUserArgs, CredentialsVerb, JoinTokenVerb, LoginArgs, PasswordArgs, Role, TokensVerb};
use files::FilesVerb;
use fleet::{CHOSEN_HELP, DrainArgs, ForgetArgs, NoteArgs, UndrainArgs, WakeArgs};
use schedules::SchedulesVerb;
use sharing::{ProfilesVerb, QueueVerb, QuotaArgs, ResourcesVerb, SetLimitsArgs};
use types::TypesVerb;

/// Looks after a PC Farm: its jobs, its problems, its workstations.
#[derive(Debug, Parser)]
#[command(name = "pcfarm", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub verb: Verb,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable, 4 not found, 5 not allowed, 6 timed out,
7 the job ended with failed problems.
Settings: flags, above PCFARM_* variables, above ~/.config/pcfarm/pcfarm.toml (keys server, timeout,
token_file, ca). A token is PCFARM_TOKEN, in a file, or kept by `pcfarm login`; never an argument.";

#[derive(Debug, Args)]
pub struct Global {
    /// The farm's server [default: http://127.0.0.1:7070]
    #[arg(long, global = true, help_heading = "Everywhere", env = "PCFARM_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// A TOML file with settings [default: ~/.config/pcfarm/pcfarm.toml if it is there]
    #[arg(long, global = true, help_heading = "Everywhere", env = "PCFARM_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How long to wait: 30s, 5m, 1h30m [default: 30s for an answer; no limit for load, results and wait]
    #[arg(long, global = true, help_heading = "Everywhere", env = "PCFARM_TIMEOUT", value_name = "TIME", value_parser = crate::settings::duration)]
    pub timeout: Option<Duration>,
    /// A file with the token to show [default: what `pcfarm login` has kept for the server]
    #[arg(long, global = true, help_heading = "Everywhere", env = "PCFARM_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The authority of the server's certificate: a PEM file [default: those that this system trusts]
    #[arg(long, global = true, help_heading = "Everywhere", env = "PCFARM_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The HTTP proxy on the way to the server: http://proxy.example.org:3128, or none [default: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY];
    /// NO_PROXY names exceptions
    #[arg(
        long,
        global = true,
        help_heading = "Everywhere",
        env = "PCFARM_PROXY",
        value_name = "URL",
        hide_env_values = true
    )]
    pub proxy: Option<String>,
    /// Show a token to a server that is not this machine's although it is spoken to in the clear
    #[arg(long, global = true, help_heading = "Everywhere", env = "PCFARM_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    pub insecure: bool,
    /// Trace what this sets off, if the server sends traces somewhere; prints the trace's id [TRACEPARENT: a part of that one]
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub trace: bool,
    /// Form of the output [default: table; for `job results` ndjson]
    #[arg(long, short, global = true, help_heading = "Everywhere", value_enum, value_name = "FORM")]
    pub output: Option<Format>,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// The farm at a glance
    Status,
    /// Workstations, what they do and why
    Workstations(WorkstationsArgs),
    /// Jobs, the newest first
    Jobs(JobsArgs),
    /// One job: create, load, watch, stop it
    #[command(subcommand)]
    Job(JobVerb),
    /// Problems of a job
    Problems(ProblemsArgs),
    /// Get a token for a name and a password, and keep it for this server
    Login(LoginArgs),
    /// Revoke the token that was kept for this server, and forget it
    Logout,
    /// Who the server takes you for, and what you may do
    Whoami,
    /// Tokens, which programs show
    #[command(subcommand)]
    Tokens(TokensVerb),
    /// Tokens by which workstations join the farm
    #[command(subcommand)]
    JoinToken(JoinTokenVerb),
    /// Workstations that have joined: their certificates
    #[command(subcommand)]
    Credentials(CredentialsVerb),
    /// Users: accounts, limits and turns, and what they have waiting and in progress
    #[command(subcommand)]
    Users(UsersVerb),
    /// Job types: how kinds of problems run
    #[command(subcommand)]
    Types(TypesVerb),
    /// Files by the SHA-256 of their content, such as modules of job types
    #[command(subcommand)]
    Files(FilesVerb),
    /// Profiles: what limits job types by weekday, time of day and conditions
    #[command(subcommand)]
    Profiles(ProfilesVerb),
    /// Resources, such as licences, and who has their tokens
    #[command(subcommand)]
    Resources(ResourcesVerb),
    /// What is handed out at all: suspend and resume, park and unpark
    #[command(subcommand)]
    Queue(QueueVerb),
    /// The database's clock: whether it is proven, and accepting it
    Clock {
        #[command(subcommand)]
        verb: Option<ClockVerb>,
    },
    /// Let workstations finish what they hold and take no more
    Drain(DrainArgs),
    /// Let drained workstations work again
    Undrain(UndrainArgs),
    /// Remember something about workstations, for whoever looks at them
    Note(NoteArgs),
    /// Wake workstations that sleep or are switched off, where their owners allow it
    Wake(WakeArgs),
    /// Remove workstations that are gone for good, with their certificates
    Forget(ForgetArgs),
    /// What workstations may take: users, job types, labels, size
    Select(SelectArgs),
    /// What agents go by when they decide whether they may work, and what the farm wants of that
    Presence(PresenceArgs),
    /// Slots: workstations beside an agent's own that share its cores, each with a selection of its own
    #[command(subcommand)]
    Slots(SlotsVerb),
    /// Why a job or a workstation is not running, and what would change that
    #[command(subcommand)]
    Explain(ExplainVerb),
    /// What happened: who did what, to what, when
    Events(EventsArgs),
    /// What was done in each hour, by job type and user
    Statistics(StatisticsArgs),
    /// What users have had done on each day, and the CPU seconds that it took
    Usage(UsageArgs),
    /// Who is told when jobs end, are late or have failures, and what could not be told
    #[command(subcommand)]
    Alerts(AlertsVerb),
    /// What is to be done when: problems or jobs, by cron, at intervals or once
    #[command(subcommand)]
    Schedules(SchedulesVerb),
    /// Status, jobs and workstations, refreshed every second
    Top(TopArgs),
    /// Run a farm on this machine, until Ctrl-C
    Up(UpArgs),
    /// Print a completion script for a shell
    Completions { shell: Shell },
}

#[derive(Debug, Subcommand)]
pub enum ClockVerb {
    /// Say that the database's clock is right: what is old is removed again
    Accept,
}

#[derive(Debug, Args)]
#[command(after_help = CHOSEN_HELP)]
pub struct WorkstationsArgs {
    /// Those alone, dead ones, too: ids, 1-20, host names, 'lab-*', LABEL=VALUE, all
    #[arg(value_name = "WORKSTATION", value_delimiter = ',')]
    pub workstations: Vec<String>,
    /// Dead ones, too
    #[arg(long, short)]
    pub all: bool,
    /// What each has that jobs may require, instead of what it does
    #[arg(long)]
    pub facts: bool,
    /// All that is known of each, as wide as the terminal is: what tells that nobody is there, power, how quickly it gave way, its
    /// agent's version
    #[arg(long, conflicts_with = "facts")]
    pub wide: bool,
    /// At most this many
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Ended ones, too
    #[arg(long, short)]
    pub all: bool,
    /// At most this many
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Subcommand)]
pub enum JobVerb {
    /// Create an empty job, to be loaded and opened
    Create(CreateArgs),
    /// Show a job with its lanes
    Show(JobArgs),
    /// What its controllers and people say about a job, and a word more
    Info(InfoArgs),
    /// What workstations must have to run it, from now on
    Require(RequireArgs),
    /// Load problems from a CSV or NDJSON file, or by a query
    Load(LoadArgs),
    /// Loading is over: hand its problems out
    Open(JobArgs),
    /// Hand nothing more out until it is released
    Hold(JobArgs),
    /// Hand out again what was held
    Release(JobArgs),
    /// End it now; problems without a result are cancelled
    Cancel(JobArgs),
    /// Put failed problems back on the queue with fresh attempts
    Retry(JobArgs),
    /// Wait until it has ended: exits with 7 if problems failed, with 6 after --timeout
    Wait(JobArgs),
    /// Write the results so far, in problem id order
    Results(ResultsArgs),
}

#[derive(Debug, Subcommand)]
pub enum UsersVerb {
    /// All of them
    List,
    /// Limits and turns, of users, or of all who have none of their own
    Set(SetLimitsArgs),
    /// What users may load in a day or a month: look, or set it
    Quota(QuotaArgs),
    /// Those who may log in, and what for
    Accounts,
    /// Let somebody in
    Create(CreateUserArgs),
    /// What a user may do, from now on
    Role {
        user: String,
        #[arg(value_enum)]
        role: Role,
    },
    /// Let a user in no more, with a password or a token
    Disable { user: String },
    /// Let a user in again
    Enable { user: String },
    /// Change your password, or give a user another
    Password(PasswordArgs),
}

#[derive(Debug, Args)]
pub struct JobArgs {
    /// The job's id, as `pcfarm jobs` shows it
    #[arg(value_name = "ID", value_parser = job_id)]
    pub id: JobId,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    pub name: String,
    /// The job type: how its problems run
    #[arg(long = "type", value_name = "TYPE")]
    pub job_type: String,
    #[command(flatten)]
    pub options: JobOptions,
}

/// What a new job can be given besides its name and type.
#[derive(Debug, Default, Args)]
pub struct JobOptions {
    /// A higher one is served first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// A line about it, for people
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Only workstations that fulfil this run it, such as 'memory >= 8 GiB'; again for more, which are then all
    #[arg(long, value_name = "CONDITION")]
    pub require: Vec<String>,
    /// Any other option of create_job; the value is JSON, so a text needs its quotes
    #[arg(long = "option", value_name = "KEY=JSON")]
    pub options: Vec<String>,
    /// Repeating a call with the same key gives the first job and loads nothing
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_long_help = LOAD_HELP)]
pub struct LoadArgs {
    /// A CSV or NDJSON file, .gz or not; `-` is standard input
    #[arg(required_unless_present = "query", conflicts_with = "query")]
    pub file: Option<PathBuf>,
    /// Load into this job, which must not have ended
    #[arg(long, value_name = "ID", value_parser = job_id, conflicts_with_all = ["name", "job_type"])]
    pub job: Option<JobId>,
    /// Load into a new job of this name
    #[arg(long, requires = "job_type", required_unless_present = "job")]
    pub name: Option<String>,
    /// The new job's type
    #[arg(long = "type", value_name = "TYPE", requires = "name")]
    pub job_type: Option<String>,
    #[command(flatten)]
    pub options: JobOptions,
    /// Problems per convoy [default: the farm's, 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub convoy: Option<u32>,
    /// [default: by the file's name]
    #[arg(long, value_enum, conflicts_with = "query")]
    pub format: Option<InputFormat>,
    /// The column or field that is the key
    #[arg(long, value_name = "COLUMN", conflicts_with = "query")]
    pub key: Option<String>,
    /// The column or field that is the group: problems of a group share a convoy
    #[arg(long, value_name = "COLUMN", conflicts_with = "query")]
    pub group: Option<String>,
    /// Take every CSV cell as text
    #[arg(long, conflicts_with = "query")]
    pub strings: bool,
    /// Open the job after loading [default for a new job]
    #[arg(long, overrides_with = "no_open")]
    pub open: bool,
    /// Leave the job loading [default with --job]
    #[arg(long, overrides_with = "open")]
    pub no_open: bool,
    /// Load what this query returns: key text, payload jsonb and optionally group_key text, priority int,
    /// deadline timestamptz, job_type text, not_before timestamptz, weight int. It runs on your own database connection, with your rights
    #[arg(long, value_name = "SQL")]
    pub query: Option<String>,
    /// The database of --query [default: PCFARM_DATABASE_URL, DATABASE_URL, PG* variables]
    #[arg(long, value_name = "URL", requires = "query", conflicts_with = "file")]
    pub database_url: Option<String>,
}

const LOAD_HELP: &str = "\
CSV
  The first record names the columns. The key is the column `key`, or --key COLUMN. A column
  named `payload` holds the payload as JSON; without one, the payload is an object of all
  columns but the key (and but `group_key`, unless --group names another). A cell is taken as
    null     when it is empty,
    boolean  when it is true or false,
    number   when written as JSON writes numbers, without exponent, in at most 15 digits,
    text     otherwise (so 007 and +1 are text); with --strings always.

NDJSON
  A line is {\"key\": …, \"payload\": …} and optionally \"group_key\". With --key FIELD the
  whole object is the payload.

WHAT A PROBLEM MAY HAVE
  Columns beside a column `payload`, or fields beside a field `payload`:
    job_type    another than the job's
    priority    within the job, highest first
    deadline    within the job and priority, earliest first: 2026-03-01T18:00:00Z
    not_before  it is not handed out before
    weight      what it counts against limits by the hour, if not 1

A load is one transaction: when a line is wrong, nothing is loaded.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    Csv,
    Ndjson,
}

#[derive(Debug, Args)]
pub struct ResultsArgs {
    /// The job's id
    #[arg(value_name = "ID", value_parser = job_id)]
    pub id: JobId,
    /// Write to a file, which appears when it is complete
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Get the files that problems have made, too: each as DIR/KEY/NAME. What is there already is not got again
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ProblemsArgs {
    /// The job's id
    #[arg(value_name = "JOB", value_parser = job_id)]
    pub job: JobId,
    /// Only those in this state
    #[arg(long, value_enum)]
    pub state: Option<ProblemState>,
    /// Only those with this key
    #[arg(long)]
    pub key: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ProblemState {
    Waiting,
    InProgress,
    Done,
    Failed,
    Cancelled,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Of this job
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub job: Option<JobId>,
    /// Of this workstation, by its id or host name
    #[arg(long, value_name = "WORKSTATION")]
    pub workstation: Option<String>,
    /// Whose name begins so: job, "job failed", workstation, user
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub what: String,
    /// Then or later: 2026-03-01T18:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<jiff::Timestamp>,
    /// At most this many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Go on with what happens next, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
}

#[derive(Debug, Subcommand)]
pub enum AlertsVerb {
    /// Ask to be told
    Subscribe(Box<SubscribeArgs>),
    /// Who is told of what
    Subscriptions {
        /// Of this job
        #[arg(long, value_name = "ID", value_parser = job_id)]
        job: Option<JobId>,
    },
    /// Tell no more
    Unsubscribe {
        #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
        subscription: i64,
    },
    /// Alerts and what has become of them, the newest first
    List {
        /// Of this job
        #[arg(long, value_name = "ID", value_parser = job_id)]
        job: Option<JobId>,
        /// Those alone that wait or were given up
        #[arg(long)]
        undelivered: bool,
        /// At most this many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Try one again that was not delivered, at once and for another day
    Retry {
        #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
        alert: i64,
    },
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true))]
pub struct SubscribeArgs {
    /// Post to this URL
    #[arg(long, value_name = "URL", group = "target")]
    pub webhook: Option<String>,
    /// Mail to this address
    #[arg(long, value_name = "ADDRESS", group = "target")]
    pub email: Option<String>,
    /// Notify this channel of PostgreSQL's LISTEN
    #[arg(long, value_name = "CHANNEL", group = "target")]
    pub notify: Option<String>,
    /// What to tell: ended, failed (or cancelled), late, failures, digest, workstations; several by commas
    #[arg(long, value_name = "EVENTS", value_delimiter = ',', default_value = "ended")]
    pub on: Vec<String>,
    /// Of this job alone
    #[arg(long, value_name = "ID", value_parser = job_id, conflicts_with_all = ["job_type", "all_users"])]
    pub job: Option<JobId>,
    /// Of jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub job_type: Option<String>,
    /// Of everybody's jobs, and not only of those that were submitted to a server
    #[arg(long)]
    pub all_users: bool,
    /// For failures: at this share of a job's problems, from 0 (the first one) to 1
    #[arg(long, value_name = "SHARE")]
    pub failed_share: Option<f64>,
    /// A file with the webhook's secret, whsec_ and base64 [default: one is made, and shown once]
    #[arg(long, value_name = "FILE", requires = "webhook")]
    pub secret_file: Option<PathBuf>,
    /// A digest's time of day [default: 07:00]
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// By the clocks of this time zone: Europe/Berlin; UTC if missing
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
}

#[derive(Debug, Args)]
pub struct StatisticsArgs {
    /// Then or later: 2026-03-01T18:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<jiff::Timestamp>,
    /// Of this job type
    #[arg(long = "type", value_name = "TYPE")]
    pub job_type: Option<String>,
    /// Of this user
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

#[derive(Debug, Args)]
pub struct UsageArgs {
    /// That day or later, in UTC: 2026-03-01 [default: 30 days ago]
    #[arg(long, value_name = "DAY")]
    pub since: Option<jiff::civil::Date>,
    /// Of this user
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

#[derive(Debug, Args)]
pub struct InfoArgs {
    #[arg(value_name = "JOB", value_parser = job_id)]
    pub id: JobId,
    /// A JSON object that is merged with what is there; null removes a key
    #[arg(long, value_name = "JSON")]
    pub set: Option<String>,
}

#[derive(Debug, Args)]
pub struct RequireArgs {
    #[arg(value_name = "JOB", value_parser = job_id)]
    pub id: JobId,
    /// Such as 'memory >= 8 GiB', gpu or 'label = lab-a': all of them; `none` for any workstation
    #[arg(required = true, value_name = "CONDITION")]
    pub conditions: Vec<String>,
}

#[derive(Debug, Args)]
pub struct SelectArgs {
    /// Host names, of workstations that are still to come, too; or ids, 1-20, 'lab-*', LABEL=VALUE, all
    #[arg(required = true, value_name = "HOST", value_delimiter = ',')]
    pub hostnames: Vec<String>,
    /// Work of these users and nobody else's; by commas, `none` for anybody's
    #[arg(long, value_name = "USERS", value_delimiter = ',')]
    pub require: Vec<String>,
    /// No work of these users
    #[arg(long, value_name = "USERS", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// Work of these users first, while they have some
    #[arg(long, value_name = "USERS", value_delimiter = ',')]
    pub prefer: Vec<String>,
    /// Problems of these job types alone
    #[arg(long = "types", value_name = "TYPES", value_delimiter = ',')]
    pub job_types: Vec<String>,
    /// Labels that they have, beside those that their agents say
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// No problem with a payload of more bytes; 0 for any
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(i64).range(0..))]
    pub largest: Option<i64>,
}

#[derive(Debug, Args)]
pub struct PresenceArgs {
    /// Host names, of workstations that are still to come, too; or ids, 1-20, 'lab-*', LABEL=VALUE, all
    #[arg(required = true, value_name = "HOST", value_delimiter = ',')]
    pub hostnames: Vec<String>,
    /// What agents are to go by, within what their owners allow: start_after=30m, load=0.1, cores=2, on_battery=false,
    /// on_return=freeze, 'hours=18:00-07:00; sat,sun'
    #[arg(long = "set", value_name = "SETTING=VALUE", value_parser = crate::presence::wish)]
    pub set: Vec<(String, serde_json::Value)>,
    /// What the farm wants no more of: the owner's own holds again
    #[arg(long = "unset", value_name = "SETTING")]
    pub unset: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum SlotsVerb {
    /// Slots, and what they are doing
    List,
    /// Let agents run a slot: it becomes the workstation HOST#NAME, for `pcfarm select`
    Start(SlotArgs),
    /// End it: what it holds goes back to the queue
    Stop(SlotArgs),
}

#[derive(Debug, Args)]
pub struct SlotArgs {
    /// What it is called, on each of the hosts
    pub name: String,
    /// Host names, of workstations that are still to come, too; or ids, 1-20, 'lab-*', LABEL=VALUE, all
    #[arg(required = true, value_name = "HOST", value_delimiter = ',')]
    pub hostnames: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum ExplainVerb {
    /// Why a job is not running
    Job(JobArgs),
    /// Why a workstation has nothing to do
    Workstation {
        /// Its id or host name
        workstation: String,
    },
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Time between two looks
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = crate::settings::duration)]
    pub interval: Duration,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Where the farm is kept [default: ~/.local/share/pcfarm; for root /var/lib/pcfarm]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Where the server listens
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// How many agents to start
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub workers: u16,
}

fn job_id(text: &str) -> Result<JobId, String> {
    match text.parse::<JobId>() {
        Ok(id) if id.0 > 0 => Ok(id),
        _ => Err("a job is named by its id, a number; `pcfarm jobs --all` lists them".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_a_load_needs() {
        let cases = [
            ("job load a.csv --job 1", true),
            ("job load a.csv --name n --type t", true),
            ("job load --query q --name n --type t", true),
            ("job load - --format csv --job 1 --open", true),
            ("job load a.csv", false),
            ("job load a.csv --name n", false),
            ("job load a.csv --job 1 --name n --type t", false),
            ("job load --job 1", false),
            ("job load a.csv --query q --job 1", false),
            ("job load a.csv --job 0", false),
            ("job load a.csv --job night", false),
            ("job load a.csv --job 1 --convoy 0", false),
            ("job load a.csv --job 1 --database-url u", false),
        ];
        for (line, right) in cases {
            let words = std::iter::once("pcfarm").chain(line.split(' '));
            let parsed = Cli::try_parse_from(words);
            assert_eq!(parsed.is_ok(), right, "{line}: {parsed:?}");
        }
    }
}
