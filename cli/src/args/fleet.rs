//! What is done with many workstations at once.

use std::time::Duration;

use clap::Args;

pub const CHOSEN_HELP: &str = "\
Workstations are chosen by
  17           its id
  1-20         ids from 1 to 20, as far as they are there
  pc17         a host name
  'lab-*'      host names: * for anything, ? for one character
  room=B12     a label, as its agent or an administrator gives it; label=big for one without =
  all          every one that the farm knows, dead ones, too
Several by commas or spaces.";

#[derive(Debug, Args)]
pub struct Chosen {
    /// Ids, 1-20, host names, 'lab-*', LABEL=VALUE, all
    #[arg(required = true, value_name = "WORKSTATION", value_delimiter = ',')]
    pub workstations: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = CHOSEN_HELP)]
pub struct UndrainArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// Those in quarantine, too, which stay there otherwise
    #[arg(long)]
    pub release: bool,
}

#[derive(Debug, Args)]
#[command(after_help = CHOSEN_HELP)]
pub struct DrainArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// What is not finished after so long is given back, at no cost: 10m [default: what they hold is finished]
    #[arg(long, value_name = "TIME", value_parser = crate::settings::duration)]
    pub deadline: Option<Duration>,
    /// What is not finished is given back at once
    #[arg(long, conflicts_with = "deadline")]
    pub now: bool,
    /// Why, for whoever looks at them
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Let them work again, as `pcfarm undrain` does
    #[arg(long, conflicts_with_all = ["deadline", "now", "reason"])]
    pub undo: bool,
    /// Do not ask whether several are meant
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = CHOSEN_HELP)]
pub struct NoteArgs {
    /// What is to be remembered, instead of what was; '' for nothing
    pub text: String,
    #[command(flatten)]
    pub chosen: Chosen,
}

#[derive(Debug, Args)]
#[command(after_help = CHOSEN_HELP)]
pub struct WakeArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// Do not ask whether several are meant
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = CHOSEN_HELP)]
pub struct ForgetArgs {
    #[command(flatten)]
    pub chosen: Chosen,
    /// Includes workstations that are neither offline nor dead: what they hold goes back to the queue
    #[arg(long)]
    pub force: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}
