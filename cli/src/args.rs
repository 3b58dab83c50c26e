//! The command line. Nothing here does anything.

pub mod schedules;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pcfarm_proto::ids::JobId;

use crate::output::Format;
use schedules::SchedulesVerb;

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
    /// Show a token to a server that is not this machine's although it is spoken to in the clear
    #[arg(long, global = true, help_heading = "Everywhere", env = "PCFARM_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    pub insecure: bool,
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
    /// Profiles: what limits job types by weekday, time of day and conditions
    #[command(subcommand)]
    Profiles(ProfilesVerb),
    /// Resources, such as licences, and who has their tokens
    #[command(subcommand)]
    Resources(ResourcesVerb),
    /// What is handed out at all: suspend and resume, park and unpark
    #[command(subcommand)]
    Queue(QueueVerb),
    /// Let a workstation finish what it holds and take no more
    Drain(DrainArgs),
    /// What workstations may take: users, job types, labels, size
    Select(SelectArgs),
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

#[derive(Debug, Args)]
pub struct WorkstationsArgs {
    /// Dead ones, too
    #[arg(long, short)]
    pub all: bool,
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
pub struct LoginArgs {
    /// Your name [default: that of this machine's account]
    #[arg(value_name = "USER", env = "USER")]
    pub user: String,
    /// Read the password from this file (- is standard input), and not from the terminal
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub password_file: Option<PathBuf>,
    /// Keep a token that you have: read from standard input
    #[arg(long)]
    pub token: bool,
    /// What the new token is called in lists [default: login and this machine's name]
    #[arg(long, value_name = "NAME", conflicts_with = "token")]
    pub name: Option<String>,
    /// How long the new token holds: 12h, 30d [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = crate::settings::lifetime, conflicts_with = "token")]
    pub expires: Option<Duration>,
    /// Make an account of your own first, where the server lets people do that
    #[arg(long, conflicts_with_all = ["token", "name", "expires"])]
    pub register: bool,
}

/// What an account is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Its own jobs
    User,
    /// Everybody's jobs, and workstations
    Operator,
    /// Users and settings, too
    Administrator,
}

#[derive(Debug, Args)]
pub struct CreateUserArgs {
    pub user: String,
    #[arg(long, value_enum, default_value = "user")]
    pub role: Role,
    /// Read the password from this file (- is standard input), and not from the terminal
    #[arg(long, value_name = "FILE", conflicts_with = "no_password")]
    pub password_file: Option<PathBuf>,
    /// It gets in with tokens alone: `pcfarm tokens create --user USER`
    #[arg(long)]
    pub no_password: bool,
}

#[derive(Debug, Args)]
pub struct PasswordArgs {
    /// Whose, of administrators [default: your own]
    pub user: Option<String>,
    /// Read it from this file (- is standard input): of your own first the old one, then, on a line of its own, the new one
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum TokensVerb {
    /// Make one, and print it, once
    Create(CreateTokenArgs),
    /// Yours, or, of administrators, all
    List {
        /// Of this user
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Revoked and expired ones, too
        #[arg(long, short)]
        all: bool,
    },
    /// It holds no longer, on any server
    Revoke { id: i64 },
}

#[derive(Debug, Args)]
pub struct CreateTokenArgs {
    /// By which to know it again
    pub name: String,
    /// Whose, of administrators [default: your own]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// What it may do: submit, operate, administer, work; several by commas [default: what the user may]
    #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
    pub scope: Vec<String>,
    /// How long it holds: 12h, 90d [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = crate::settings::lifetime)]
    pub expires: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum JoinTokenVerb {
    /// Make one, and print the command by which a workstation joins
    Create {
        /// How many workstations it lets in
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        uses: u32,
        /// How long it holds: 30m, 1d [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = crate::settings::lifetime)]
        expires: Option<Duration>,
    },
    /// Those that were made, without their secrets
    List,
    /// It lets nobody in any more
    Revoke { id: i64 },
}

#[derive(Debug, Subcommand)]
pub enum CredentialsVerb {
    /// By host name
    List,
    /// Cut a workstation off, at once and for good
    Revoke {
        /// Its identity, a UUID, or its host name
        workstation: String,
    },
}

#[derive(Debug, Args)]
pub struct SetLimitsArgs {
    /// Owners of jobs: names of database roles
    #[arg(value_name = "USER", required_unless_present = "defaults", conflicts_with = "defaults")]
    pub users: Vec<String>,
    /// What users have who have nothing of their own
    #[arg(long, conflicts_with_all = ["job_type", "prohibited"])]
    pub defaults: bool,
    /// Limits of what they have of this job type, beside those of the user
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "prohibited")]
    pub job_type: Option<String>,
    /// Most problems waiting: a submit over it is refused; `default` for the farm's
    #[arg(long, value_name = "N")]
    pub queue_limit: Option<Limit>,
    /// Most problems in progress; 0 stops them
    #[arg(long, value_name = "N")]
    pub concurrency: Option<Limit>,
    /// Turns in a round; 0 takes them out of the ring
    #[arg(long, value_name = "N")]
    pub allocation: Option<Limit>,
    /// Served only by workstations that require them by name
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub prohibited: Option<bool>,
}

/// A number, or as the farm has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Most(i64),
    Default,
}

impl std::str::FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        match text {
            "default" => Ok(Limit::Default),
            _ => match text.parse::<i64>() {
                Ok(most) if most >= 0 => Ok(Limit::Most(most)),
                _ => Err("a whole number from 0 on, or `default`".to_owned()),
            },
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum ProfilesVerb {
    /// All entries, or those of a job type
    List {
        #[arg(value_name = "TYPE", default_value = "")]
        job_type: String,
    },
    /// Add an entry to a job type's profile
    Add {
        #[arg(value_name = "TYPE")]
        job_type: String,
        #[command(flatten)]
        entry: ProfileArgs,
    },
    /// Change an entry: what is not named stays
    Change {
        #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
        profile: i64,
        #[command(flatten)]
        entry: ProfileArgs,
    },
    /// Remove an entry
    Delete {
        #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
        profile: i64,
    },
    /// Which entry of a job type holds, now or at another time, and why the others do not
    Explain {
        #[arg(value_name = "TYPE")]
        job_type: String,
        /// Then: 2026-03-01T18:00:00Z, with signals as they are now
        #[arg(long, value_name = "TIME")]
        at: Option<jiff::Timestamp>,
    },
    /// The signals that conditions ask for
    Signals,
    /// Say what a signal is now
    Signal {
        name: String,
        #[arg(allow_negative_numbers = true, required_unless_present = "forget", conflicts_with = "forget")]
        value: Option<f64>,
        /// Not known any more after this: 5m
        #[arg(long = "for", value_name = "TIME", value_parser = crate::settings::duration, conflicts_with = "forget")]
        holds_for: Option<std::time::Duration>,
        /// It is not known any more
        #[arg(long)]
        forget: bool,
    },
}

#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Weekdays: sat-wed or mon,tue; all if missing
    #[arg(long, value_name = "DAYS")]
    pub days: Option<String>,
    /// From this time of day: 07:00
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// To this time of day; 24:00 for midnight, and earlier than the start for the next day
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// By the clocks of this time zone: Europe/Berlin; the database's if missing
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Most problems in any hour; `none` for no limit
    #[arg(long, value_name = "N")]
    pub per_hour: Option<Cap>,
    /// Most problems of a checkout; `none` for no limit
    #[arg(long, value_name = "N")]
    pub per_checkout: Option<Cap>,
    /// Priority instead of that of jobs; `none` for theirs
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<Cap>,
    /// Only while a signal is so: web_users<100 or idle_share>=0.5; again for more; `none` for no conditions
    #[arg(long, value_name = "CONDITION")]
    pub when: Vec<When>,
}

/// A number, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    Most(i64),
    None,
}

impl std::str::FromStr for Cap {
    type Err = String;

    fn from_str(text: &str) -> Result<Cap, String> {
        match text {
            "none" => Ok(Cap::None),
            _ => text.parse().map(Cap::Most).map_err(|_| "a whole number, or `none`".to_owned()),
        }
    }
}

/// A condition on a signal, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    AtLeast(String, f64),
    Below(String, f64),
    None,
}

impl std::str::FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<When, String> {
        let wrong = || "like web_users<100 or idle_share>=0.5, or `none`".to_owned();
        if text == "none" {
            return Ok(When::None);
        }
        let bound = |bound: &str| bound.trim().parse::<f64>().ok().filter(|bound| bound.is_finite()).ok_or_else(wrong);
        match (text.split_once(">="), text.split_once('<')) {
            (Some((signal, least)), _) => Ok(When::AtLeast(signal.trim().to_owned(), bound(least)?)),
            (None, Some((signal, limit))) => Ok(When::Below(signal.trim().to_owned(), bound(limit)?)),
            (None, None) => Err(wrong()),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum ResourcesVerb {
    /// All of them
    List,
    /// Say how many tokens there are of one
    Set {
        name: String,
        #[arg(value_parser = clap::value_parser!(i64).range(0..))]
        tokens: i64,
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
    },
    /// There is no such resource any more
    Delete { name: String },
}

#[derive(Debug, Subcommand)]
pub enum QueueVerb {
    /// Hand out nothing any more, or nothing of one job type; submits go on
    Suspend {
        /// Nothing of this job type
        #[arg(long = "type", value_name = "TYPE")]
        job_type: Option<String>,
        /// Why, for people
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Hand out again
    Resume {
        /// This job type
        #[arg(long = "type", value_name = "TYPE")]
        job_type: Option<String>,
    },
    /// Hand out no more of what was loaded into a job, by a user, or in a time
    Park(ParkArgs),
    /// Hand it out again
    Unpark(ParkArgs),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct ParkArgs {
    /// Of this job
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub job: Option<JobId>,
    /// Of this user's jobs
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Loaded then or later: 2026-03-01T18:00:00Z
    #[arg(long, value_name = "TIME")]
    pub loaded_from: Option<jiff::Timestamp>,
    /// Loaded earlier
    #[arg(long, value_name = "TIME")]
    pub loaded_before: Option<jiff::Timestamp>,
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
    /// What to tell: ended, failed (or cancelled), late, failures, digest; several by commas
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
pub struct SelectArgs {
    /// Host names, as `pcfarm workstations` shows them
    #[arg(required = true, value_name = "HOST")]
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
    /// Host names, as `pcfarm workstations` shows them
    #[arg(required = true, value_name = "HOST")]
    pub hostnames: Vec<String>,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Its id or host name
    pub workstation: String,
    /// Let it work again
    #[arg(long)]
    pub undo: bool,
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
