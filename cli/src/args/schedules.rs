//! What `pcfarm schedules` takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use pcfarm_proto::ids::JobId;

use super::job_id;

#[derive(Debug, Subcommand)]
pub enum SchedulesVerb {
    /// Create a schedule: a problem for a standing job, or a new job, whenever it comes
    Create(CreateScheduleArgs),
    /// Schedules, by owner and name
    List(ListSchedulesArgs),
    /// Show a schedule with its next times
    Show(ScheduleArgs),
    /// Change what is named, and nothing else
    Update(UpdateScheduleArgs),
    /// Let it come again, from now on
    Enable(ScheduleArgs),
    /// Let it come no more, until it is enabled
    Disable(ScheduleArgs),
    /// Remove it; what it has enqueued stays
    Delete {
        #[command(flatten)]
        schedule: ScheduleArgs,
        /// Only if its version is still this
        #[arg(long, value_name = "N")]
        version: Option<i64>,
    },
    /// Trigger it once more, now; its times stay as they are
    Trigger(ScheduleArgs),
    /// What it has triggered, when, how late, and what came of it
    History {
        #[command(flatten)]
        schedule: ScheduleArgs,
        /// At most this many
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Those before this sequence number
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
        before: Option<i64>,
    },
    /// When a schedule comes next, or a recurrence that is none yet
    Next(NextArgs),
    /// Write definitions as JSON, to be applied to this or another farm
    Export {
        /// These alone
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// Of this user [default: your own]
        #[arg(long, value_name = "USER")]
        owner: Option<String>,
    },
    /// Create and update schedules as a file says, all of them or none
    Apply {
        /// As `export` writes it; `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Delete schedules of yours that are not in it
        #[arg(long)]
        prune: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub struct ScheduleArgs {
    /// Its name, OWNER/NAME, or its id
    #[arg(value_name = "SCHEDULE")]
    pub schedule: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CatchUp {
    /// Missed times are missed
    Skip,
    /// The last one is triggered
    Once,
    /// All are, up to a limit
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum State {
    Active,
    Disabled,
    Ended,
    Broken,
}

/// What may be said of a schedule, new or not.
#[derive(Debug, Args)]
pub struct DefinitionArgs {
    /// The zone of its times: Europe/Berlin; UTC if missing
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// No time before this; an interval counts from here: 2027-01-01T06:00:00Z
    #[arg(long, value_name = "TIME")]
    pub starts: Option<jiff::Timestamp>,
    /// No time after this
    #[arg(long, value_name = "TIME")]
    pub ends: Option<jiff::Timestamp>,
    /// Of times that no server was there for [default: once]
    #[arg(long, value_enum, value_name = "HOW")]
    pub catch_up: Option<CatchUp>,
    /// With `--catch-up all`: so many at most [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub catch_up_limit: Option<u32>,
    /// Trigger later than it is due, by up to so much: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = crate::settings::duration)]
    pub jitter: Option<Duration>,
    /// JSON for whatever is triggered; @FILE for what a file holds
    #[arg(long, value_name = "JSON")]
    pub payload: Option<String>,
    /// A line about it
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Enqueue a problem into this standing job
    #[arg(long, value_name = "ID", value_parser = job_id, group = "target")]
    pub job: Option<JobId>,
    /// Enqueue a problem into your job of this unique key
    #[arg(long, value_name = "KEY", group = "target")]
    pub job_key: Option<String>,
    /// Make a job by this template: JSON with job_type and loads; @FILE for what a file holds
    #[arg(long, value_name = "JSON", group = "target")]
    pub template: Option<String>,
}

#[derive(Debug, Args)]
pub struct CreateScheduleArgs {
    /// Its name among your schedules
    pub name: String,
    /// When: '0 3 * * mon-fri', '@daily', 'every 15 minutes', 'once 2027-01-31T18:00'
    pub recurrence: String,
    #[command(flatten)]
    pub definition: DefinitionArgs,
    /// Not to come until it is enabled
    #[arg(long)]
    pub disabled: bool,
}

#[derive(Debug, Args)]
pub struct UpdateScheduleArgs {
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// Another name
    #[arg(long, value_name = "NAME")]
    pub rename: Option<String>,
    /// Another recurrence
    #[arg(long, value_name = "WHEN")]
    pub recurrence: Option<String>,
    #[command(flatten)]
    pub definition: DefinitionArgs,
    /// No start any more
    #[arg(long, conflicts_with = "starts")]
    pub no_start: bool,
    /// No end any more
    #[arg(long, conflicts_with = "ends")]
    pub no_end: bool,
    /// Only if its version is still this, as `show` has told it
    #[arg(long, value_name = "N")]
    pub version: Option<i64>,
}

#[derive(Debug, Args)]
pub struct ListSchedulesArgs {
    /// Of this user
    #[arg(long, value_name = "USER")]
    pub owner: Option<String>,
    /// In this state
    #[arg(long, value_enum)]
    pub state: Option<State>,
    /// Whose names begin so
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// That enqueue into this job
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub job: Option<JobId>,
    /// At most this many
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct NextArgs {
    /// Its name, OWNER/NAME, or its id
    #[arg(value_name = "SCHEDULE", required_unless_present = "recurrence", conflicts_with = "recurrence")]
    pub schedule: Option<String>,
    /// When this would come
    #[arg(long, value_name = "WHEN")]
    pub recurrence: Option<String>,
    /// In this zone
    #[arg(long, value_name = "ZONE", requires = "recurrence")]
    pub zone: Option<String>,
    /// How many times
    #[arg(long, short = 'n', default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
}
