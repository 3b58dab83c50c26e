//! Puts the PC to sleep when the farm has no work for it and no person is present, if its owner wants that. `logind` tells the farm of each
//! sleep that the system announces.
//!
//! Owns the decision, which is pure, and the way there: the farm is told first, and is given a moment in which nothing comes. Whoever
//! comes back meanwhile keeps the PC awake. What is the system's is one command. It never decides whether somebody is there.

#[cfg(all(target_os = "linux", feature = "desktop"))]
mod logind;
mod wake;

use std::convert::Infallible;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::clock;
use crate::platform::SLEEP_COMMAND;
use crate::presence::policy::span;
use crate::presence::signals::Moment;
use crate::presence::{Desk, Directive};

pub use wake::{Card, Wake};

/// The rhythm of an agent that holds something: what keeps a PC awake lasts longer, or is nothing.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Who sleeps sooner than that sleeps too soon.
const LEAST_LOOK: Duration = Duration::from_millis(100);

/// From the agent's word that it goes to sleep to its sleep: what was on its way to it has come by then, and goes back.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// A command that takes longer has hung, and a PC that is not asleep by then does not go to sleep.
const COMMAND_WAIT: Duration = Duration::from_secs(60);

/// What says that the machine has slept.
const SLEPT: Duration = Duration::from_secs(1);

const WEEK: f64 = 7.0 * 86_400.0;

/// What the owner says of sleep: the table `[sleep]` of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Whether the farm may wake it.
    pub wake: Wake,
    /// When it goes to sleep; none: never.
    pub sleeps: Option<Sleeps>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sleeps {
    /// When it has had nothing to do for so long.
    pub after: Duration,
    /// Not only if the farm has woken it, and nobody has been there since.
    pub always: bool,
    pub command: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSettings {
    #[serde(default)]
    wake: Wake,
    after: Option<f64>,
    #[serde(default)]
    always: bool,
    command: Option<Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum SleepError {
    #[error("after is a time in seconds, more than 0 and at most a week")]
    After,
    #[error("command names a program and its arguments")]
    Command,
    #[error("always and command are for what sleeps: say after how long")]
    NoAfter,
}

impl FileSettings {
    pub fn checked(self) -> Result<Settings, SleepError> {
        let FileSettings { wake, after, always, command } = self;
        let Some(after) = after else {
            return if always || command.is_some() {
                Err(SleepError::NoAfter)
            } else {
                Ok(Settings { wake, sleeps: None })
            };
        };
        if !(after > 0.0 && after <= WEEK) {
            return Err(SleepError::After);
        }
        let command = command.unwrap_or_else(|| SLEEP_COMMAND.iter().map(|word| (*word).to_owned()).collect());
        if command.first().is_none_or(String::is_empty) {
            return Err(SleepError::Command);
        }
        Ok(Settings { wake, sleeps: Some(Sleeps { after: Duration::from_secs_f64(after), always, command }) })
    }
}

/// What keeps a PC awake, at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub now: Moment,
    /// A server can give it something.
    pub in_session: bool,
    /// Something is in its hands, or was not acknowledged.
    pub holds: bool,
    /// As far as anybody can tell nobody is there, and nothing is done there that a person has begun.
    pub deserted: bool,
    /// The farm has woken it, and nobody has been there since.
    pub woken: bool,
}

/// Whether it is time to go to sleep. `idle_since` is when it had nothing to do first; none: it had something.
fn decide(settings: &Sleeps, idle_since: &mut Option<Moment>, look: &Look) -> bool {
    let idle = look.in_session && !look.holds && look.deserted;
    if !idle {
        *idle_since = None;
        return false;
    }
    let since = *idle_since.get_or_insert(look.now);
    (settings.always || look.woken) && look.now.saturating_sub(since) >= settings.after
}

/// Never ends. Without settings it does nothing.
pub async fn run(settings: Option<Sleeps>, desk: Desk) -> Infallible {
    let Some(settings) = settings else { return std::future::pending().await };
    let (mut idle_since, mut slept) = (None, slept_so_far());
    let every = settings.after.clamp(LEAST_LOOK, LOOK_EVERY);
    loop {
        sleep(every).await;
        let slept_by_now = slept_so_far();
        if slept_by_now > slept + SLEPT {
            // It was not idle, but not there.
            (idle_since, slept) = (None, slept_by_now);
        }
        if decide(&settings, &mut idle_since, &desk.looks_for_sleep(clock::now())) {
            go_to_sleep(&settings, &desk).await;
            (idle_since, slept) = (None, slept_so_far());
        }
    }
}

/// Tells the farm of each sleep that the system announces. `run`: directory of the system's bus. Never ends.
#[cfg(all(target_os = "linux", feature = "desktop"))]
pub async fn announced(run: &Path, desk: &Desk) -> Infallible {
    logind::run(logind::Bus::of(run), desk).await
}

/// Other systems announce nothing to this agent.
#[cfg(not(all(target_os = "linux", feature = "desktop")))]
pub async fn announced(_run: &Path, _desk: &Desk) -> Infallible {
    std::future::pending().await
}

fn slept_so_far() -> Duration {
    clock::now().saturating_sub(clock::awake())
}

async fn go_to_sleep(settings: &Sleeps, desk: &Desk) {
    let mut directives = desk.directives();
    if !desk.falls_asleep(&format!("asleep: it had nothing to do for {}", span(settings.after))) {
        return;
    }
    let sleeping = async {
        sleep(LAST_MOMENT).await;
        if desk.holds_anything() {
            info!("does not go to sleep: something came in the last moment");
            return;
        }
        let before = slept_so_far();
        info!(command = settings.command.join(" "), "goes to sleep");
        if let Err(error) = run_command(&settings.command).await {
            return warn!(
                error = format!("{error:#}"),
                "the PC does not go to sleep: trying again when it was idle for as long"
            );
        }
        // The system answers before it sleeps.
        let _ = timeout(COMMAND_WAIT, async {
            while slept_so_far() < before + SLEPT {
                sleep(SLEPT).await;
            }
        })
        .await;
    };
    tokio::select! {
        biased;
        () = until_disturbed(&mut directives) => info!("stays awake: somebody is there"),
        () = sleeping => {}
    }
    desk.wakes();
}

/// Until something else holds than that it sleeps. A command that runs then is killed.
async fn until_disturbed(directives: &mut watch::Receiver<Directive>) {
    if directives.wait_for(|directive| !directive.asleep).await.is_err() {
        std::future::pending().await
    }
}

async fn run_command(command: &[String]) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().expect("settings name a program");
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output();
    let output = timeout(COMMAND_WAIT, output).await??;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program}: {}: {}", output.status, said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Look = Look { now: Duration::ZERO, in_session: true, holds: false, deserted: true, woken: true };

    fn settings(text: &str) -> Result<Settings, String> {
        let file: FileSettings = toml::from_str(text).map_err(|error| error.to_string())?;
        file.checked().map_err(|error| error.to_string())
    }

    #[test]
    fn it_sleeps_when_it_had_nothing_to_do_for_long_enough() {
        let only_woken = settings("after = 60").expect("settings").sleeps.expect("it sleeps");
        let always = Sleeps { always: true, ..only_woken.clone() };
        let at = |seconds| Duration::from_secs(seconds);
        /// What each look finds, and whether it sleeps then.
        type Looks = Vec<(Look, bool)>;
        let cases: [(&str, &Sleeps, Looks); 7] = [
            (
                "idle all the time",
                &only_woken,
                vec![(IDLE, false), (Look { now: at(59), ..IDLE }, false), (Look { now: at(60), ..IDLE }, true)],
            ),
            (
                "somebody was there meanwhile",
                &only_woken,
                vec![
                    (IDLE, false),
                    (Look { now: at(30), deserted: false, ..IDLE }, false),
                    (Look { now: at(60), ..IDLE }, false),
                    (Look { now: at(119), ..IDLE }, false),
                    (Look { now: at(120), ..IDLE }, true),
                ],
            ),
            (
                "it had something",
                &only_woken,
                vec![
                    (IDLE, false),
                    (Look { now: at(50), holds: true, ..IDLE }, false),
                    (Look { now: at(60), holds: true, ..IDLE }, false),
                    (Look { now: at(61), ..IDLE }, false),
                    (Look { now: at(121), ..IDLE }, true),
                ],
            ),
            (
                "no server could give it anything",
                &only_woken,
                vec![
                    (IDLE, false),
                    (Look { now: at(60), in_session: false, ..IDLE }, false),
                    (Look { now: at(61), ..IDLE }, false),
                ],
            ),
            (
                "a person had switched it on",
                &only_woken,
                vec![(Look { woken: false, ..IDLE }, false), (Look { now: at(999), woken: false, ..IDLE }, false)],
            ),
            (
                "that does not matter here",
                &always,
                vec![(Look { woken: false, ..IDLE }, false), (Look { now: at(60), woken: false, ..IDLE }, true)],
            ),
            (
                "never while somebody is there",
                &always,
                vec![
                    (Look { deserted: false, ..IDLE }, false),
                    (Look { now: at(999), deserted: false, ..IDLE }, false),
                ],
            ),
        ];
        for (case, settings, looks) in cases {
            let mut idle_since = None;
            for (look, sleeps) in looks {
                assert_eq!(decide(settings, &mut idle_since, &look), sleeps, "{case}: {look:?}");
            }
        }
    }

    #[test]
    fn nothing_sleeps_or_is_woken_unless_its_owner_says_so() {
        assert_eq!(settings(""), Ok(Settings::default()));
        assert_eq!(Settings::default(), Settings { wake: Wake::Never, sleeps: None });
        let sleeps = settings("wake = true\nafter = 1800").expect("settings");
        let expected = Sleeps {
            after: Duration::from_secs(1800),
            always: false,
            command: SLEEP_COMMAND.iter().map(|word| (*word).to_owned()).collect(),
        };
        assert_eq!(sleeps, Settings { wake: Wake::ByRoute, sleeps: Some(expected) });
        for (text, expected) in [
            ("after = 0", "after is a time"),
            ("after = nan", "after is a time"),
            ("after = 1e9", "after is a time"),
            ("after = 5\ncommand = []", "command names a program"),
            ("always = true", "say after how long"),
            ("aftr = 5", "unknown field"),
        ] {
            let error = settings(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
