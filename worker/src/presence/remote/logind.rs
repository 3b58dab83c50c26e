//! Sessions as logind keeps them in files below `/run/systemd/sessions`.
//!
//! Selects the sessions that a person may use without a terminal. Files answer though the bus hangs, and libsystemd itself reads these
//! (`sd_session_get_state`); docs/adr/0009 has the reasons. elogind writes the same files.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A machine that serves more people at a time is no desk.
const SESSIONS_LIMIT: usize = 1024;

/// Size limit of a session's file: logind writes a few hundred bytes.
const FILE_BYTES_LIMIT: u64 = 16 << 10;

/// A session of logind's list.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub id: String,
    pub uid: u32,
    pub user: String,
    /// Program that opened the session, such as `sshd`; empty: unknown.
    pub service: String,
    /// Beginning, such as `Mon 13:05`; empty: unknown.
    pub since: String,
    /// Cgroup below that of its user, such as `session-3.scope`; empty: none.
    pub scope: String,
    pub is_graphical: bool,
    pub is_remote: bool,
    /// The process that opened the session.
    pub leader: Option<u32>,
    state: String,
    class: String,
    seat: String,
    terminal: String,
}

impl Session {
    /// Tells whether a person may use the session without any other source seeing that. Input devices tell of a seat, and terminals of
    /// their own input. Classes that a later logind invents count.
    pub fn is_unseen(&self) -> bool {
        const NO_PERSON: [&str; 6] =
            ["greeter", "lock-screen", "background", "background-light", "manager", "manager-early"];
        self.state != "closing"
            && !NO_PERSON.contains(&self.class.as_str())
            && self.seat.is_empty()
            && self.terminal.is_empty()
    }
}

impl Session {
    /// Seat whose input devices the session has.
    pub fn seat(&self) -> Option<&str> {
        Some(self.seat.as_str()).filter(|seat| !seat.is_empty() && !self.is_remote)
    }

    /// True for the session of a user's service manager, which may serve several desktops.
    pub fn is_of_manager(&self) -> bool {
        self.class.starts_with("manager")
    }

    /// A session in which its user may have a desktop.
    pub fn may_be_a_desktop(&self) -> bool {
        (self.class.is_empty() || self.class.starts_with("user")) && !self.is_closing()
    }

    /// logind has not yet made the cgroup of such a session.
    pub fn is_opening(&self) -> bool {
        self.state == "opening"
    }

    /// Its user has logged out, and programs of the session still run.
    pub fn is_closing(&self) -> bool {
        self.state == "closing"
    }
}

/// Returns all sessions, or none on a machine without logind. An error means that the list is unknown.
pub fn sessions(run: &Path) -> Result<Option<Vec<Session>>, String> {
    let dir = run.join("systemd/sessions");
    let broken = |error: std::io::Error| format!("{}: {error}", dir.display());
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(broken)?,
    };
    let mut sessions = Vec::new();
    for entry in entries {
        let name = entry.map_err(broken)?.file_name();
        let name = name.to_str().unwrap_or_default();
        // Pipes end with `.ref`, and files that are being written begin with a dot.
        if name.is_empty() || name.contains('.') {
            continue;
        }
        let Some(text) = text(&dir.join(name))? else { continue };
        let session = parse(name, &text).ok_or_else(|| format!("{}/{name} makes no sense", dir.display()))?;
        if sessions.len() >= SESSIONS_LIMIT {
            return Err(format!("{} lists more than {SESSIONS_LIMIT} sessions", dir.display()));
        }
        sessions.push(session);
    }
    sessions.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Some(sessions))
}

/// Content of a file of logind, or none if it has gone meanwhile.
pub fn text(path: &Path) -> Result<Option<String>, String> {
    let broken = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(broken(&error)),
        // Opening a pipe would hang.
        Ok(data) if !data.is_file() => return Err(broken(&"no file")),
        Ok(data) if data.len() > FILE_BYTES_LIMIT => return Err(broken(&"too long")),
        Ok(_) => {}
    }
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => text.map(Some).map_err(|error| broken(&error)),
    }
}

/// Lines of `NAME=value`, where a value is written as in C.
pub fn values(text: &str) -> HashMap<&str, String> {
    text.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name, unescaped(value))).collect()
}

fn unescaped(text: &str) -> String {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let number = |digits: Option<&[u8]>, radix| {
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok())
        };
        match rest.first() {
            Some(b'x') if number(rest.get(1..3), 16).is_some() => {
                bytes.extend(number(rest.get(1..3), 16));
                rest = &rest[3..];
            }
            Some(b'0'..=b'3') if number(rest.get(..3), 8).is_some() => {
                bytes.extend(number(rest.get(..3), 8));
                rest = &rest[3..];
            }
            Some(&other) => {
                bytes.push(if matches!(other, b'n' | b't' | b'r') { b' ' } else { other });
                rest = &rest[1..];
            }
            None => {}
        }
    }
    String::from_utf8_lossy(&bytes).replace(char::is_control, " ")
}

fn parse(id: &str, text: &str) -> Option<Session> {
    let values = values(text);
    let value = |name: &str| values.get(name).cloned().unwrap_or_default();
    let uid = value("UID").parse().ok()?;
    let state = Some(value("STATE")).filter(|state| !state.is_empty())?;
    let user = Some(value("USER")).filter(|user| !user.is_empty()).unwrap_or_else(|| format!("user {uid}"));
    let began = value("REALTIME").parse().ok().and_then(|time| Timestamp::from_microsecond(time).ok());
    let since = began.map(|began| began.to_zoned(TimeZone::system()).strftime("%a %H:%M").to_string());
    Some(Session {
        id: id.to_owned(),
        uid,
        user,
        service: value("SERVICE"),
        since: since.unwrap_or_default(),
        // The name becomes part of a path.
        scope: Some(value("SCOPE")).filter(|scope| !scope.contains('/') && scope != "..").unwrap_or_default(),
        leader: value("LEADER").parse().ok().filter(|leader| *leader > 0),
        is_graphical: matches!(value("TYPE").as_str(), "x11" | "wayland" | "mir"),
        is_remote: value("REMOTE") == "1",
        state,
        class: value("CLASS"),
        seat: value("SEAT"),
        terminal: value("TTY"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As systemd 252 writes it for a remote editor.
    const EDITOR: &str = "# This is private data. Do not parse.\nUID=1000\nUSER=alice\nACTIVE=1\nIS_DISPLAY=0\nSTATE=active\n\
        REMOTE=1\nTYPE=tty\nORIGINAL_TYPE=tty\nCLASS=user\nSCOPE=session-3.scope\nFIFO=/run/systemd/sessions/3.ref\n\
        REMOTE_HOST=192.0.2.7\nSERVICE=sshd\nLEADER=4711\nAUDIT=3\nREALTIME=1764425100000000\nMONOTONIC=5000000\n";

    #[test]
    fn a_person_may_be_behind_a_session_without_seat_and_terminal() {
        let with = |line: &str| {
            let name = line.split_once('=').expect("it has one").0;
            let kept: Vec<&str> = EDITOR.lines().filter(|old| !old.starts_with(&format!("{name}="))).collect();
            format!("{}\n{line}\n", kept.join("\n"))
        };
        for (line, expected) in [
            ("STATE=active", true),
            ("STATE=online", true),
            ("STATE=opening", true),
            ("STATE=closing", false),
            ("CLASS=user-light", true),
            ("CLASS=user-incomplete", true),
            // Since systemd 256 root's sessions by ssh are of this class.
            ("CLASS=user-early", true),
            ("CLASS=manager", false),
            ("CLASS=manager-early", false),
            ("CLASS=greeter", false),
            ("CLASS=lock-screen", false),
            ("CLASS=background", false),
            ("CLASS=background-light", false),
            ("CLASS=of-the-future", true),
            ("TYPE=x11", true),
            ("SEAT=seat0", false),
            ("TTY=pts/3", false),
        ] {
            let session = parse("3", &with(line)).expect("it makes sense");
            assert_eq!(session.is_unseen(), expected, "{line}");
        }
        let session = parse("3", EDITOR).expect("it makes sense");
        assert_eq!((session.uid, &*session.user, &*session.service), (1000, "alice", "sshd"));
        assert_eq!((&*session.scope, session.is_graphical), ("session-3.scope", false));
        assert!(!session.since.is_empty());
        assert_eq!(parse("3", &with("SCOPE=../../x")).expect("it makes sense").scope, "");
        assert_eq!(parse("3", &with("STATE=")), None);
        assert_eq!(parse("3", &with("UID=-1")), None);
    }

    #[test]
    fn text_is_written_as_in_c() {
        for (text, expected) in [
            ("A player of films", "A player of films"),
            ("Film l\\303\\244uft", "Film läuft"),
            ("\"quoted \\\"so\\\"\"", "quoted \"so\""),
            ("a\\nb\\x1bc\\\\d", "a b c\\d"),
            ("\\", ""),
            ("\\3", "3"),
            ("\\xg1", "xg1"),
            ("\\400", "400"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_is_not_known() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(sessions(dir.path()), Ok(None), "no logind");
        let list = dir.path().join("systemd/sessions");
        fs::create_dir_all(&list).expect("made");
        assert_eq!(sessions(dir.path()), Ok(Some(Vec::new())));
        fs::write(list.join("3"), EDITOR).expect("written");
        fs::write(list.join(".#3abc"), "").expect("written");
        let mode = rustix::fs::Mode::RUSR;
        let pipe = list.join("3.ref");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        let ids =
            |sessions: Option<Vec<Session>>| sessions.map(|all| all.into_iter().map(|one| one.id).collect::<Vec<_>>());
        assert_eq!(sessions(dir.path()).map(ids), Ok(Some(vec!["3".to_owned()])));
        fs::write(list.join("4"), "").expect("written");
        assert!(sessions(dir.path()).is_err_and(|why| why.ends_with("/4 makes no sense")));
        fs::write(list.join("4"), vec![b'a'; 100 << 10]).expect("written");
        assert!(sessions(dir.path()).is_err_and(|why| why.ends_with("too long")));
        fs::remove_dir_all(&list).expect("it is there");
        // Even root cannot list a file.
        fs::write(&list, "").expect("written");
        assert!(sessions(dir.path()).is_err());
    }
}
