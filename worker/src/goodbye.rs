//! The last word of a session that ends in good order: why it ends.

use pcfarm_proto::v1::Goodbye;
use pcfarm_proto::v1::goodbye::Reason;

/// `is_own`: the session is the agent's own, and not a slot's. `program_stops`: the whole program is to stop.
pub async fn of(is_own: bool, program_stops: bool) -> Goodbye {
    let (reason, text) = match (program_stops, is_own) {
        (true, _) if system::stops().await => (Reason::Shutdown, ""),
        (true, _) => match system::program() {
            Program::Same => (Reason::Stopped, ""),
            Program::Replaced => (Reason::Upgrade, "a new version"),
            Program::Removed => (Reason::Stopped, "its program was removed"),
        },
        (false, true) => (Reason::Upgrade, "other settings"),
        (false, false) => (Reason::Stopped, "its slot was ended"),
    };
    Goodbye { reason: reason.into(), text: text.to_owned() }
}

/// The file that started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the agent cannot ask other systems"))]
enum Program {
    Same,
    /// Another file has its name, as after an upgrade.
    Replaced,
    Removed,
}

#[cfg(target_os = "linux")]
mod system {
    use super::Program;
    use std::path::Path;
    use std::process::Stdio;
    use std::time::Duration;

    use tokio::process::Command;
    use tokio::time::timeout;

    /// A service manager that shuts the system down answers in milliseconds, or has no time.
    const ANSWER_WAIT: Duration = Duration::from_millis(500);

    /// True if the system shuts down or restarts.
    pub async fn stops() -> bool {
        if !Path::new("/run/systemd/system").exists() {
            return false;
        }
        let mut asks = Command::new("systemctl");
        asks.arg("is-system-running").stdin(Stdio::null()).kill_on_drop(true);
        matches!(timeout(ANSWER_WAIT, asks.output()).await, Ok(Ok(said)) if said.stdout.trim_ascii() == b"stopping")
    }

    pub fn program() -> Program {
        std::fs::read_link("/proc/self/exe").map_or(Program::Same, |exe| of_link(&exe.to_string_lossy()))
    }

    /// `exe`: the link as the kernel shows it.
    pub fn of_link(exe: &str) -> Program {
        match exe.strip_suffix(" (deleted)") {
            None => Program::Same,
            Some(path) if Path::new(path).exists() => Program::Replaced,
            Some(_) => Program::Removed,
        }
    }
}

/// The agent cannot ask other systems.
#[cfg(not(target_os = "linux"))]
mod system {
    pub async fn stops() -> bool {
        false
    }

    pub fn program() -> super::Program {
        super::Program::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn an_upgrade_is_told_from_a_removal() {
        for (link, expected) in [
            ("/usr/bin/env", Program::Same),
            ("/usr/bin/env (deleted)", Program::Replaced),
            ("/nowhere/pcfarm-worker (deleted)", Program::Removed),
        ] {
            assert_eq!(system::of_link(link), expected, "{link}");
        }
    }

    #[tokio::test]
    async fn a_goodbye_names_its_reason() {
        for (is_own, program_stops, expected) in [
            (true, true, Reason::Stopped),
            (false, true, Reason::Stopped),
            (true, false, Reason::Upgrade),
            (false, false, Reason::Stopped),
        ] {
            assert_eq!(of(is_own, program_stops).await.reason(), expected, "{is_own} {program_stops}");
        }
    }
}
