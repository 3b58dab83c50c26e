//! `identity`: who this workstation is to the farm, and to which machine that is bound.

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;

use super::{DONE, FAILED};
use crate::agent::chain;
use crate::machine::fingerprint::Fingerprint;
use crate::settings::Settings;
use crate::state_dir::binding::{self, Wish};
use crate::state_dir::{StateDir, StateDirError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Change {
    /// Binds the identity to this machine at the agent's next start: its hardware was replaced, and the agent has taken its own state
    /// directory for a copy
    Keep,
    /// Gives this machine an identity of its own at the agent's next start: its state directory is a copy
    New,
}

pub fn run(settings: &Settings, change: Option<Change>) -> ExitCode {
    match answer(&settings.state_dir, change, &Fingerprint::of_this_machine()) {
        Ok(text) => {
            println!("{text}");
            ExitCode::from(DONE)
        }
        Err(error) => {
            eprintln!("{}", chain(&error));
            ExitCode::from(FAILED)
        }
    }
}

fn answer(dir: &Path, change: Option<Change>, present: &Fingerprint) -> Result<String, StateDirError> {
    let wish = match change {
        None => return shown(dir, present),
        Some(Change::Keep) => Wish::Keep,
        Some(Change::New) => Wish::New,
    };
    wish.leave(dir)?;
    let what = match wish {
        Wish::Keep => "the identity belongs to this machine",
        Wish::New => {
            "this machine has an identity of its own, and joins the farm anew where the farm demands certificates"
        }
    };
    Ok(format!("from the agent's next start on {what}: restart it (systemctl restart pcfarm-worker)"))
}

fn shown(dir: &Path, present: &Fingerprint) -> Result<String, StateDirError> {
    let identity = StateDir::peek(dir)?.map_or_else(|| "none yet".to_owned(), |identity| identity.to_string());
    let known = match (present.id.is_some(), present.cards.len()) {
        (false, 0) => "nothing identifies this machine: the identity is bound to no machine".to_owned(),
        (id, cards) => {
            let id = if id { "its machine-id" } else { "no machine-id" };
            format!("{id}, {cards} network {}", if cards == 1 { "card" } else { "cards" })
        }
    };
    let bound = match binding::difference(dir, present)? {
        None => "belongs to this machine".to_owned(),
        Some(why) => {
            format!("belongs to another machine ({why}): `pcfarm-worker identity keep` if the hardware was replaced")
        }
    };
    Ok(format!("identity     {identity}, {bound}\nstate        {}\nmachine      {known}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_told_what_is_bound_and_wishes_hold_at_the_next_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let machine = |id: u8| Fingerprint { id: Some([id; 32]), ..Fingerprint::default() };
        let identity = binding::bind(dir.path(), &machine(1)).expect("bound").0;
        let text = answer(dir.path(), None, &machine(1)).expect("shown");
        assert!(text.contains(&identity.to_string()) && text.contains("belongs to this machine"), "{text}");
        let text = answer(dir.path(), None, &machine(2)).expect("shown");
        assert!(text.contains("another machine-id") && text.contains("identity keep"), "{text}");
        answer(dir.path(), Some(Change::Keep), &machine(2)).expect("left");
        assert_eq!(binding::bind(dir.path(), &machine(2)).expect("bound").0, identity);
        answer(dir.path(), Some(Change::New), &machine(2)).expect("left");
        assert_ne!(binding::bind(dir.path(), &machine(2)).expect("bound").0, identity);
        assert!(answer(Path::new("/nonexistent/state"), Some(Change::Keep), &machine(1)).is_err());
    }
}
