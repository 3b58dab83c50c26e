//! The last word of a session that ends in good order: why it ends.

use pcfarm_proto::v1::Goodbye;
use pcfarm_proto::v1::goodbye::Reason;

/// `is_own`: the session is the agent's own, and not a slot's. `program_stops`: the whole program is to stop.
pub async fn of(is_own: bool, program_stops: bool) -> Goodbye {
    let (reason, text) = match (program_stops, is_own) {
        (true, _) if system::stops().await => (Reason::Shutdown, ""),
        (true, _) if system::has_replaced_this_program() => (Reason::Upgrade, "a new version"),
        (true, _) => (Reason::Stopped, ""),
        (false, true) => (Reason::Upgrade, "other settings"),
        (false, false) => (Reason::Stopped, "its slot was ended"),
    };
    Goodbye { reason: reason.into(), text: text.to_owned() }
}

#[cfg(target_os = "linux")]
mod system {
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

    /// True if the file that started this process is gone, as after an upgrade.
    pub fn has_replaced_this_program() -> bool {
        std::fs::read_link("/proc/self/exe").is_ok_and(|exe| exe.to_string_lossy().ends_with(" (deleted)"))
    }
}

/// The agent cannot ask other systems.
#[cfg(not(target_os = "linux"))]
mod system {
    pub async fn stops() -> bool {
        false
    }

    pub fn has_replaced_this_program() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
