//! Inhibitors as logind keeps them in files below `/run/systemd/inhibit`.
//!
//! Owns which of them say that a person may be watching: those that forbid the machine to take itself for idle. Programs that only
//! delay its sleep do not count.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::super::remote::logind::{text, values};
use super::{Held, Place};

/// Longer lists come from a program that never releases any.
const LIMIT: usize = 1024;

/// Holders whose inhibitors never count: this process, and the account of the agent's service.
pub struct Own {
    pub pid: u32,
    pub service: Option<u32>,
}

/// Returns the inhibitors that count, none where no logind runs. An error means that the list is unknown.
pub fn held(run: &Path, own: &Own) -> Result<Vec<Held>, String> {
    let dir = run.join("systemd/inhibit");
    let broken = |error: std::io::Error| format!("{}: {error}", dir.display());
    let entries = match fs::read_dir(&dir) {
        // logind creates the directory for its first inhibitor.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(broken)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let name = entry.map_err(broken)?.file_name();
        let name = name.to_str().unwrap_or_default();
        if name.is_empty() || name.contains('.') {
            continue;
        }
        let Some(text) = text(&dir.join(name))? else { continue };
        let Ok(held) = parse(&text, own) else { return Err(format!("{}/{name} makes no sense", dir.display())) };
        all.extend(held);
        if all.len() > LIMIT {
            return Err(format!("{} lists more than {LIMIT} inhibitors", dir.display()));
        }
    }
    Ok(all)
}

struct NoSense;

fn parse(text: &str, own: &Own) -> Result<Option<Held>, NoSense> {
    let values = values(text);
    let value = |name: &str| values.get(name).map(String::as_str);
    let (Some(what), Some(mode)) = (value("WHAT"), value("MODE")) else { return Err(NoSense) };
    let number = |name: &str| value(name).and_then(|number| number.parse::<u32>().ok());
    let is_own = number("PID") == Some(own.pid) || own.service.is_some_and(|own| number("UID") == Some(own));
    // Also `block-weak`, which its own user may override.
    let counts = mode.starts_with("block") && what.split(':').any(|what| what == "idle") && !is_own;
    let by = value("WHO").filter(|who| !who.is_empty()).unwrap_or("a program");
    Ok(counts.then(|| Held { place: Place::Logind, by: by.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Own = Own { pid: 17, service: Some(990) };

    #[test]
    fn those_count_that_forbid_idleness() {
        // As systemd 252 writes it.
        let film = "# This is private data. Do not parse.\nWHAT=sleep:idle\nMODE=block\nUID=1000\nPID=4711\n\
            WHO=A player of films\nWHY=Film l\\303\\244uft\nFIFO=/run/systemd/inhibit/1.ref\n";
        for (old, new, expected) in [
            ("", "", Some("A player of films")),
            ("MODE=block", "MODE=block-weak", Some("A player of films")),
            ("MODE=block", "MODE=delay", None),
            ("sleep:idle", "idle", Some("A player of films")),
            ("sleep:idle", "sleep:shutdown:handle-lid-switch", None),
            ("PID=4711", "PID=17", None),
            ("UID=1000", "UID=990", None),
            ("WHO=A player of films", "WHO=", Some("a program")),
        ] {
            let held = parse(&film.replacen(old, new, 1), &OWN).ok().expect("it makes sense");
            assert_eq!(held.map(|held| held.by).as_deref(), expected, "{new}");
        }
        assert!(parse("WHO=x\n", &OWN).is_err());
    }

    #[test]
    fn a_list_that_cannot_be_read_is_not_known() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(held(dir.path(), &OWN), Ok(Vec::new()));
        let list = dir.path().join("systemd/inhibit");
        fs::create_dir_all(&list).expect("made");
        fs::write(list.join("1"), "WHAT=idle\nMODE=block\nWHO=x\n").expect("written");
        fs::write(list.join("1.ref"), "").expect("written");
        assert_eq!(held(dir.path(), &OWN).map(|all| all.len()), Ok(1));
        fs::write(list.join("2"), "").expect("written");
        assert!(held(dir.path(), &OWN).is_err());
        fs::remove_dir_all(&list).expect("it is there");
        fs::write(&list, "").expect("written");
        assert!(held(dir.path(), &OWN).is_err());
    }
}
