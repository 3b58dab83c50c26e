//! What each may have, and when: limits, profiles, resources, and the queue.

use clap::{Args, Subcommand, ValueEnum};
use pcfarm_proto::ids::JobId;

use super::job_id;

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
    /// Only if nobody has changed them since: the version that `users list --output json` has told
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub version: String,
}

#[derive(Debug, Args)]
pub struct QuotaArgs {
    /// [default: all that have one]
    #[arg(value_name = "USER")]
    pub users: Vec<String>,
    /// Of each day or month, in UTC
    #[arg(long, value_enum, requires = "users", requires = "what")]
    pub per: Option<Period>,
    /// Most problems loaded; `none` for as many as they like
    #[arg(long, value_name = "N", group = "what", requires = "per")]
    pub problems: Option<Cap>,
    /// Nothing is loaded any more once so many CPU seconds are used; `none` for as many as they like
    #[arg(long, value_name = "SECONDS", group = "what", requires = "per")]
    pub cpu_seconds: Option<Cap>,
    /// Only if nobody has changed it since: the version that JSON has told
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub version: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Period {
    Day,
    Month,
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
