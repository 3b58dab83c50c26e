//! Seat of the helper's session: its input comes from devices that the agent sees, too.
//!
//! logind knows the seat best. Without logind's file the environment names it. A display of X11 also tells whether it has a console:
//! a VNC server that a person starts on the desktop inherits the environment, but has no console.

use std::path::Path;

use crate::presence::remote::logind::{text, values};

/// Returns the seat, or none for a remote session.
pub fn of_session() -> Option<String> {
    let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    seat(Path::new("/run"), named("XDG_SESSION_ID").as_deref(), named("XDG_SEAT"))
}

fn seat(run: &Path, session: Option<&str>, named: Option<String>) -> Option<String> {
    // The id becomes part of a path.
    let session = session.filter(|id| id.chars().all(char::is_alphanumeric));
    let known = session.and_then(|id| text(&run.join("systemd/sessions").join(id)).ok().flatten());
    let Some(known) = known else { return named };
    let values = values(&known);
    let value = |name: &str| values.get(name).cloned().unwrap_or_default();
    Some(value("SEAT")).filter(|seat| !seat.is_empty() && value("REMOTE") != "1")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn logind_tells_the_seat_before_the_environment() {
        let dir = tempfile::tempdir().expect("a directory");
        let list = dir.path().join("systemd/sessions");
        fs::create_dir_all(&list).expect("made");
        fs::write(list.join("2"), "UID=1000\nSEAT=seat0\nREMOTE=0\n").expect("written");
        fs::write(list.join("3"), "UID=1000\nREMOTE=1\n").expect("written");
        fs::write(list.join("4"), "UID=1000\nSEAT=seat0\nREMOTE=1\n").expect("written");
        let seat0 = || Some("seat0".to_owned());
        for (session, named, expected) in [
            (Some("2"), None, seat0()),
            (Some("3"), seat0(), None),
            (Some("4"), seat0(), None),
            (Some("5"), seat0(), seat0()),
            (Some("../sessions/2"), None, None),
            (None, seat0(), seat0()),
            (None, None, None),
        ] {
            assert_eq!(seat(dir.path(), session, named.clone()), expected, "{session:?} {named:?}");
        }
    }
}
