//! What the owner of a workstation asks its agent, and the helper of a session.
//!
//! Owns the words of it. None of it needs an administrator's rights.

mod identity;
#[cfg(all(target_os = "linux", feature = "service"))]
mod service;
#[cfg(all(target_os = "linux", not(feature = "service")))]
#[path = "command/service_missing.rs"]
mod service;

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::local;
use crate::local::message::{self, Answer, Ask, Explanation, about};
use crate::platform;
use crate::presence::history::{Entry, Event};
use crate::presence::{Presence, Start};
#[cfg(not(target_os = "linux"))]
use crate::service::elsewhere;
#[cfg(not(target_os = "macos"))]
use crate::session;
use crate::settings::{Asked, Settings};

/// An agent that lives answers in milliseconds.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// A week's history, and no more than a broken agent may say.
const ANSWER_BYTES_LIMIT: u64 = 4 << 20;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;
const NOT_REACHABLE: u8 = 3;

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Says whether the agent works now, and why: each signal, its source and its age
    Explain {
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Lets the agent do nothing for a while: 30m, 1h, 2d, until-tomorrow, tonight
    Pause {
        #[arg(value_name = "HOW LONG", value_parser = wish)]
        wish: String,
    },
    /// Ends a pause
    Resume,
    /// What the agent did in the last week
    History {
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Makes this program a service of the system, and this machine a workstation of the farm
    #[cfg(target_os = "linux")]
    Install(Box<service::Wishes>),
    /// Makes this program a service of the system, with the settings that are in its place or named by --config
    #[cfg(not(target_os = "linux"))]
    Install,
    /// Takes the service away, and what it was to the farm; leaves its settings
    #[cfg(not(target_os = "linux"))]
    Uninstall,
    /// The service, and what its agent does now
    #[cfg(not(target_os = "linux"))]
    Status,
    /// To be said by the service manager
    #[cfg(windows)]
    #[command(hide = true)]
    Serve,
    /// Takes the service away, and what it was to the farm; leaves its settings
    #[cfg(target_os = "linux")]
    Uninstall {
        /// Take away the settings and the service's user, too
        #[arg(long)]
        purge: bool,
        /// Where it was installed, if below another directory
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// The service, who this workstation is to the farm, and what its agent does now
    #[cfg(target_os = "linux")]
    Status {
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Says which step fails where the agent does not work: settings, state, name, route, port, TLS, join token, credentials,
    /// version, clock, presence
    #[cfg(target_os = "linux")]
    Doctor {
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Who this workstation is to the farm, and whether that identity belongs to this machine
    Identity {
        #[command(subcommand)]
        change: Option<identity::Change>,
    },
    /// Tells the agent, from within a person's session, when that person touches something: to be started with the session
    Session {
        /// Say nothing, and end where no agent starts with the system: for a desktop that starts this with each session
        #[arg(long)]
        autostart: bool,
    },
}

impl Command {
    /// And not about whichever agent answers.
    pub fn is_about_the_service(&self) -> bool {
        #[cfg(target_os = "linux")]
        return matches!(self, Command::Status { .. } | Command::Doctor { .. } | Command::Identity { .. });
        #[cfg(not(target_os = "linux"))]
        matches!(self, Command::Install | Command::Status | Command::Identity { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

fn wish(text: &str) -> Result<String, String> {
    text.parse::<crate::presence::pause::Wish>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("no agent answers at {}; is it running? --socket names another", .0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or "))]
    NoAgent(Vec<PathBuf>),
    #[error("{0}")]
    Refused(String),
    #[error("asking the agent: {0}")]
    Failed(#[from] std::io::Error),
}

impl NoAnswer {
    fn exit_code(&self) -> u8 {
        match self {
            NoAnswer::NoAgent(_) => NOT_REACHABLE,
            NoAnswer::Refused(_) | NoAnswer::Failed(_) => FAILED,
        }
    }
}

pub fn run(command: &Command, asked: &Asked) -> ExitCode {
    #[cfg(target_os = "linux")]
    match command {
        Command::Install(wishes) => return service::install(wishes),
        Command::Uninstall { purge, root } => return service::uninstall(*purge, root.as_deref()),
        Command::Status { output } => return service::status(asked, *output),
        Command::Doctor { output } => return service::doctor(asked, *output),
        Command::Explain { .. }
        | Command::Pause { .. }
        | Command::Resume
        | Command::History { .. }
        | Command::Identity { .. }
        | Command::Session { .. } => {}
    }
    #[cfg(not(target_os = "linux"))]
    match command {
        Command::Install => return told(elsewhere::install(asked)),
        Command::Uninstall => return told(elsewhere::uninstall()),
        Command::Status => println!("service      {}", elsewhere::state()),
        #[cfg(windows)]
        Command::Serve => {}
        Command::Explain { .. }
        | Command::Pause { .. }
        | Command::Resume
        | Command::History { .. }
        | Command::Identity { .. }
        | Command::Session { .. } => {}
    }
    match &asked.settings {
        Ok(settings) => of_desk(command, settings),
        Err(error) => {
            eprintln!("{}", crate::agent::chain(error));
            ExitCode::from(WRONG_USAGE)
        }
    }
}

/// What whoever sits there asks.
fn of_desk(command: &Command, settings: &Settings) -> ExitCode {
    let sockets = settings.socket.clone().map_or_else(|| local::candidates(&settings.state_dir), |socket| vec![socket]);
    let done = match command {
        Command::Identity { change } => return identity::run(settings, *change),
        #[cfg(not(target_os = "macos"))]
        Command::Session { autostart } => return session::run(&sockets, *autostart),
        #[cfg(target_os = "macos")]
        Command::Session { .. } => {
            eprintln!("no helper is needed here: an agent of macOS sees by itself when somebody touches something");
            return ExitCode::from(FAILED);
        }
        Command::Explain { output } => match ask(&sockets, &Ask::Explain) {
            Ok(Answer::Explanation(explanation)) => show(&*explanation, *output, text),
            Err(NoAnswer::NoAgent(sockets)) => return without_agent(settings, *output, &NoAnswer::NoAgent(sockets)),
            other => unexpected(other),
        },
        Command::History { output } => match ask(&sockets, &Ask::History) {
            Ok(Answer::History(entries)) => show(&entries, *output, |entries| history(entries)),
            other => unexpected(other),
        },
        Command::Pause { wish } => said(ask(&sockets, &Ask::Pause { wish: wish.clone() })),
        Command::Resume => said(ask(&sockets, &Ask::Resume)),
        #[cfg(target_os = "linux")]
        Command::Install(_) | Command::Uninstall { .. } | Command::Status { .. } | Command::Doctor { .. } => {
            unreachable!("it is about the service")
        }
        #[cfg(not(target_os = "linux"))]
        Command::Status => match ask(&sockets, &Ask::Explain) {
            Ok(Answer::Explanation(explanation)) => show(&*explanation, Output::Text, headline),
            other => unexpected(other),
        },
        #[cfg(not(target_os = "linux"))]
        Command::Install | Command::Uninstall => unreachable!("it is about the service"),
        #[cfg(windows)]
        Command::Serve => unreachable!("it is an agent, and no question"),
    };
    match done {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn told(done: anyhow::Result<Vec<String>>) -> ExitCode {
    match done {
        Ok(done) => tell_all(&done),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(FAILED)
        }
    }
}

#[cfg(any(not(target_os = "linux"), feature = "service"))]
fn tell_all(done: &[String]) -> ExitCode {
    done.iter().for_each(|line| println!("{line}"));
    ExitCode::from(DONE)
}

fn unexpected(answer: Result<Answer, NoAnswer>) -> Result<(), NoAnswer> {
    answer.and_then(|_| Err(NoAnswer::Refused("the agent answers something else".to_owned())))
}

fn said(answer: Result<Answer, NoAnswer>) -> Result<(), NoAnswer> {
    match answer? {
        Answer::Explanation(explanation) => show(&*explanation, Output::Text, headline),
        Answer::History(_) | Answer::Error(_) => unexpected(Err(NoAnswer::Refused("no answer".to_owned()))),
    }
}

fn show<T: serde::Serialize + ?Sized>(shown: &T, output: Output, text: impl Fn(&T) -> String) -> Result<(), NoAnswer> {
    let text = match output {
        Output::Text => text(shown),
        Output::Json => serde_json::to_string_pretty(shown).map_err(std::io::Error::from)?,
    };
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()) {
        // Whoever read it has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// The first of these sockets that somebody listens on.
fn ask(sockets: &[PathBuf], ask: &Ask) -> Result<Answer, NoAnswer> {
    let stream = sockets.iter().find_map(|socket| platform::connect(socket, ANSWER_WAIT).ok());
    let mut stream = stream.ok_or_else(|| NoAnswer::NoAgent(sockets.to_vec()))?;
    stream.write_all(&message::write(ask))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES_LIMIT)).read_until(b'\n', &mut line)?;
    match message::read(&line).map_err(NoAnswer::Refused)? {
        Answer::Error(why) => Err(NoAnswer::Refused(why)),
        answer => Ok(answer),
    }
}

/// What an agent with these settings would find if it started now.
fn without_agent(settings: &Settings, output: Output, why: &NoAnswer) -> ExitCode {
    eprintln!("{why}. This is what an agent would see that starts now:");
    // Whatever it keeps is not kept: nobody's history is this one's.
    let nowhere = std::path::Path::new("/nonexistent");
    let shown = match Presence::start(settings.presence.clone(), nowhere, Start::Fresh) {
        Ok(presence) => show(&Explanation::of(&presence.desk), output, text),
        Err(error) => Err(NoAnswer::Failed(error)),
    };
    if let Err(error) = shown {
        eprintln!("{error}");
    }
    ExitCode::from(NOT_REACHABLE)
}

fn headline(explanation: &Explanation) -> String {
    let verb = match explanation.activity.as_str() {
        "works" => "works",
        "drains" => "finishes what it has, and takes no more",
        "finishes" => "finishes what it has begun",
        "freezes" => "has frozen what it has begun",
        _ => "does not work",
    };
    let since = about(Duration::from_secs(explanation.since_seconds));
    let mut text = format!("The agent {verb}: for {since} now.\n");
    for reason in &explanation.reasons {
        text.push_str(&format!("  because: {reason}\n"));
    }
    text
}

fn text(explanation: &Explanation) -> String {
    let mut text = headline(explanation);
    text.push_str("\nIt\n");
    explanation.policy.iter().for_each(|rule| text.push_str(&format!("  {rule}\n")));
    if !explanation.settings.is_empty() {
        text.push_str("\nsetting             value                 from\n");
    }
    for setting in &explanation.settings {
        let refused = if setting.refused.is_empty() { String::new() } else { format!(" ({})", setting.refused) };
        text.push_str(&format!("{:19} {:21} {}{refused}\n", setting.name, setting.value, setting.by.name()));
    }
    text.push_str("\nsignal          source                says\n");
    for signal in &explanation.signals {
        let age = if signal.age_seconds >= 1.0 { format!(" ({:.0} s old)", signal.age_seconds) } else { String::new() };
        text.push_str(&format!("{:15} {:21} {}{age}\n", signal.signal, signal.source, signal.says));
    }
    if !explanation.notes.is_empty() {
        text.push_str("\nNote\n");
    }
    explanation.notes.iter().for_each(|note| text.push_str(&format!("  {note}\n")));
    if !explanation.holds.is_empty() {
        text.push_str("\nIt holds\n");
    }
    for holds in &explanation.holds {
        let since = about(Duration::from_secs(holds.since_seconds));
        let problems = if holds.problems == 1 { "problem" } else { "problems" };
        text.push_str(&format!(
            "  {} {problems} of job {} ({}) for {since}\n",
            holds.problems, holds.job, holds.job_type
        ));
    }
    if let Some(yields) = &explanation.yields {
        text.push_str(&format!(
            "\nIt gave way {} times: within {} ms in half of them, {} ms in 99 of 100.\n",
            yields.count, yields.p50, yields.p99
        ));
    }
    if explanation.not_kept > 0 {
        text.push_str(&format!(
            "\nIts disk is slow or full: {} entries of its history, or a pause, are lost.\n",
            explanation.not_kept
        ));
    }
    plain(&text)
}

fn history(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let at = Timestamp::from_second(entry.at).unwrap_or_default().to_zoned(TimeZone::system());
        let at = at.strftime("%a %F %H:%M").to_string();
        let what = match &entry.event {
            Event::Works => "works".to_owned(),
            Event::Stops { why } if why.is_empty() => "does not work".to_owned(),
            Event::Stops { why } => format!("does not work: {why}"),
            Event::Yielded { milliseconds } => format!("gave way within {milliseconds} ms"),
        };
        text.push_str(&format!("{at}  {what}\n"));
    }
    if text.is_empty() { "Nothing is known of the last week.\n".to_owned() } else { plain(&text) }
}

/// Names that others chose command no terminal.
fn plain(text: &str) -> String {
    if !std::io::stdout().is_terminal() {
        return text.to_owned();
    }
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
