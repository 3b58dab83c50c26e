//! What `pcfarm types` takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum TypesVerb {
    /// All of them
    List,
    /// All about one
    Show {
        #[arg(value_name = "TYPE")]
        job_type: String,
    },
    /// Make a job type, or change what is named of one
    Set(Box<SetTypeArgs>),
    /// There is no such job type any more: refused while something uses it
    #[command(visible_alias = "delete")]
    Remove {
        #[arg(value_name = "TYPE")]
        job_type: String,
        /// Only if nobody has changed it since: the version that `show` has told
        #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
        version: String,
    },
}

#[derive(Debug, Args)]
pub struct SetTypeArgs {
    #[arg(value_name = "TYPE")]
    pub job_type: String,
    /// What solves its problems; a new one needs it
    #[arg(long, value_name = "CONTROLLER")]
    pub controller: Option<String>,
    /// A module that solves its problems: a WASI program, which is put there and shipped to workstations that run modules
    #[arg(long, value_name = "FILE", conflicts_with = "controller")]
    pub module: Option<PathBuf>,
    /// A line about it
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Of its jobs, unless they say another; a higher one is served first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// A job's deadline is its creation and this: 8h, 2d; `none` for no deadline
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Length>,
    /// Attempts of a problem, with the first
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<i32>,
    /// Longest that a checkout may be in a workstation's hands; `none` for no limit
    #[arg(long, value_name = "TIME")]
    pub time_limit: Option<Length>,
    /// After a failed attempt a problem waits for about this, twice as long each time; `none` for no wait
    #[arg(long, visible_alias = "backoff", value_name = "TIME")]
    pub retry_delay: Option<Length>,
    /// It waits for no longer than this [default of a new one: 1h]
    #[arg(long, value_name = "TIME")]
    pub retry_delay_limit: Option<Length>,
    /// What is tried again is served first
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub retry_first: Option<bool>,
    /// Results are kept here, beside what a write-back does with them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub keep_results: Option<bool>,
    /// Its jobs are removed when they ended this long ago: 90d; `none` for never
    #[arg(long, value_name = "TIME")]
    pub retention: Option<Length>,
    /// Each problem in progress has so many tokens of a resource, 0 for none; again for more
    #[arg(long = "resource", value_name = "NAME=TOKENS")]
    pub resources: Vec<Need>,
    /// Only workstations with this label run it; again for more, which are then all; `none` for any workstation
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// Only workstations that fulfil this run it, such as 'memory >= 8 GiB'; again for more, which are then all; `none` for any
    #[arg(long, value_name = "CONDITION")]
    pub require: Vec<String>,
    /// Only if nobody has changed it since: the version that `show` has told, or `none` if it is to be a new one
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub version: String,
}

/// A length of time, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Of(Duration),
    None,
}

impl std::str::FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Length, String> {
        match text {
            "none" => Ok(Length::None),
            _ => crate::settings::lifetime(text).map(Length::Of).map_err(|wrong| format!("{wrong}, or `none`")),
        }
    }
}

/// Tokens of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub resource: String,
    pub tokens: i64,
}

impl std::str::FromStr for Need {
    type Err = String;

    fn from_str(text: &str) -> Result<Need, String> {
        let wrong = || "like licence=1".to_owned();
        let (resource, tokens) = text.split_once('=').ok_or_else(wrong)?;
        let tokens = tokens.parse().ok().filter(|tokens| *tokens >= 0).ok_or_else(wrong)?;
        Ok(Need { resource: resource.to_owned(), tokens })
    }
}
