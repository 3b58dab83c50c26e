//! Seat of the helper's session: its input comes from devices that the agent sees, too.
//!
//! logind knows the seat, but the helper must find its own session there. The environment is no sure way: gnome-session removes
//! `XDG_SESSION_ID` and `XDG_SEAT` from its children, from D-Bus and from the user's service manager, and the manager may have a session of
//! its own. The cgroup names the session then. A helper in the cgroup of the user's manager has neither, and goes by all graphical
//! sessions of its user. A display of X11 also tells whether it has a console: a VNC server that a person starts on the desktop inherits
//! the environment, but has no console.

use std::path::Path;

use crate::presence::remote::logind::{Session, sessions};

/// A console belongs to this seat.
const SEAT_OF_CONSOLES: &str = "seat0";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seat {
    At(String),
    /// A remote session, or another one without input devices.
    Nowhere,
    /// Neither logind nor the environment tells.
    Unknown,
}

impl Seat {
    pub fn of_session() -> Seat {
        let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let traces = Traces {
            user: rustix::process::getuid().as_raw(),
            session: named("XDG_SESSION_ID"),
            seat: named("XDG_SEAT"),
            cgroups: std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
        };
        find(Path::new("/run"), &traces)
    }

    /// Seat of the same session, by what its display tells.
    #[must_use]
    pub fn with_display(self, has_console: bool) -> Seat {
        match self {
            _ if !has_console => Seat::Nowhere,
            Seat::Unknown => Seat::At(SEAT_OF_CONSOLES.to_owned()),
            known @ (Seat::At(_) | Seat::Nowhere) => known,
        }
    }

    pub fn name(&self) -> Option<&str> {
        match self {
            Seat::At(name) => Some(name),
            Seat::Nowhere | Seat::Unknown => None,
        }
    }

    fn of(session: &Session) -> Seat {
        match session.seat() {
            Some(seat) => Seat::At(seat.to_owned()),
            None => Seat::Nowhere,
        }
    }
}

/// Traces that its session leaves in a process.
struct Traces {
    user: u32,
    session: Option<String>,
    seat: Option<String>,
    /// Content of `/proc/self/cgroup`.
    cgroups: String,
}

fn find(run: &Path, traces: &Traces) -> Seat {
    let by_environment = || traces.seat.clone().map_or(Seat::Unknown, Seat::At);
    let Ok(Some(listed)) = sessions(run) else { return by_environment() };
    let by_id = |id: &str| listed.iter().find(|session| session.id == id && !session.is_of_manager());
    let own = traces.session.as_deref().and_then(by_id).or_else(|| scope(&traces.cgroups).and_then(by_id));
    if let Some(own) = own {
        return Seat::of(own);
    }
    let of_user = |session: &&Session| session.uid == traces.user && session.may_be_a_desktop();
    let of_user: Vec<&Session> = listed.iter().filter(of_user).collect();
    // A desktop that is started at a console is in a session of text.
    let has_graphical = of_user.iter().any(|session| session.is_graphical);
    let possible: Vec<&Session> =
        of_user.into_iter().filter(|session| session.is_graphical || !has_graphical).collect();
    let first = possible.first().map(|first| Seat::of(first));
    match first {
        None => by_environment(),
        Some(seat) if possible.iter().all(|session| session.seat().is_some()) => seat,
        // The helper's session may be the remote one.
        Some(_) if possible.iter().any(|session| session.is_remote) => Seat::Nowhere,
        Some(_) => Seat::Unknown,
    }
}

/// Id of the innermost session whose cgroup this is.
fn scope(cgroups: &str) -> Option<&str> {
    let parts = cgroups.lines().flat_map(|line| line.split('/'));
    parts.filter_map(|part| part.strip_prefix("session-")?.strip_suffix(".scope")).next_back()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MANAGER: &str = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-pcfarm.scope\n";

    /// Sessions by their ids, with the lines of their files.
    type Listed<'a> = &'a [(&'a str, &'a str)];

    /// Lists sessions, and looks for the seat of user 1000.
    fn seat(listed: Listed<'_>, session: Option<&str>, seat: Option<&str>, cgroups: &str) -> Seat {
        let dir = tempfile::tempdir().expect("a directory");
        let list = dir.path().join("systemd/sessions");
        fs::create_dir_all(&list).expect("made");
        for (id, lines) in listed {
            let user = if lines.contains("UID=") { "" } else { "UID=1000\n" };
            let state = if lines.contains("STATE=") { "" } else { "STATE=active\n" };
            fs::write(list.join(id), format!("{user}{state}{}\n", lines.replace(' ', "\n"))).expect("written");
        }
        let (session, seat, cgroups) = (session.map(str::to_owned), seat.map(str::to_owned), cgroups.to_owned());
        find(dir.path(), &Traces { user: 1000, session, seat, cgroups })
    }

    fn seat0() -> Seat {
        Seat::At("seat0".to_owned())
    }

    #[test]
    fn logind_tells_the_seat_before_the_environment() {
        let listed = [
            ("2", "SEAT=seat0 REMOTE=0 CLASS=user TYPE=x11"),
            ("3", "REMOTE=1 CLASS=user TYPE=x11"),
            ("4", "SEAT=seat0 REMOTE=1 CLASS=user TYPE=x11"),
        ];
        for (session, named, expected) in [
            (Some("2"), None, seat0()),
            (Some("3"), Some("seat0"), Seat::Nowhere),
            (Some("4"), Some("seat0"), Seat::Nowhere),
            // The session has ended, or never was: a remote session of the same user may be the helper's.
            (Some("5"), Some("seat0"), Seat::Nowhere),
            (Some("../sessions/2"), None, Seat::Nowhere),
            (None, None, Seat::Nowhere),
        ] {
            assert_eq!(seat(&listed, session, named, MANAGER), expected, "{session:?} {named:?}");
        }
        assert_eq!(seat(&[], None, Some("seat0"), MANAGER), seat0());
        assert_eq!(seat(&[], None, None, MANAGER), Seat::Unknown);
    }

    #[test]
    fn a_helper_without_variables_finds_its_session() {
        let (local, remote) = ("SEAT=seat0 CLASS=user TYPE=wayland", "REMOTE=1 CLASS=user TYPE=x11");
        let scope = "0::/user.slice/user-1000.slice/session-3.scope\n";
        let cases: [(&str, Listed<'_>, &str, Seat); 13] = [
            ("as gnome-session starts it", &[("2", local)], MANAGER, seat0()),
            ("beside a session of ssh", &[("2", local), ("3", "REMOTE=1 CLASS=user TYPE=tty")], MANAGER, seat0()),
            ("beside the session of the manager", &[("2", local), ("3", "CLASS=manager")], MANAGER, seat0()),
            (
                "beside another user's remote session",
                &[("2", local), ("3", "UID=7 REMOTE=1 TYPE=x11")],
                MANAGER,
                seat0(),
            ),
            (
                "beside one that its user has left",
                &[("2", local), ("3", "STATE=closing REMOTE=1 TYPE=x11")],
                MANAGER,
                seat0(),
            ),
            ("beside a remote session of the same user", &[("2", local), ("3", remote)], MANAGER, Seat::Nowhere),
            ("a remote session alone", &[("3", remote)], MANAGER, Seat::Nowhere),
            ("beside a service of VNC", &[("2", local), ("3", "CLASS=user TYPE=x11")], MANAGER, Seat::Unknown),
            (
                "a compositor that was started at a console",
                &[("2", "SEAT=seat0 CLASS=user TYPE=tty")],
                MANAGER,
                seat0(),
            ),
            ("the session's own cgroup", &[("2", remote), ("3", local)], scope, seat0()),
            ("the cgroup of a remote session", &[("2", local), ("3", remote)], scope, Seat::Nowhere),
            ("the cgroup of a session that has gone", &[("2", local)], scope, seat0()),
            ("a greeter", &[("3", "SEAT=seat0 CLASS=greeter TYPE=wayland")], MANAGER, Seat::Unknown),
        ];
        for (what, listed, cgroups, expected) in cases {
            assert_eq!(seat(listed, None, None, cgroups), expected, "{what}");
            // systemd may name the session of the manager.
            let with_manager = [listed, &[("9", "CLASS=manager")]].concat();
            assert_eq!(seat(&with_manager, Some("9"), None, cgroups), expected, "{what}");
        }
    }

    #[test]
    fn a_display_with_a_console_is_at_a_seat_unless_logind_says_otherwise() {
        for (before, has_console, expected) in [
            (seat0(), true, seat0()),
            (seat0(), false, Seat::Nowhere),
            (Seat::Unknown, true, seat0()),
            (Seat::Unknown, false, Seat::Nowhere),
            (Seat::Nowhere, true, Seat::Nowhere),
        ] {
            assert_eq!(before.clone().with_display(has_console), expected, "{before:?} {has_console}");
        }
    }
}
