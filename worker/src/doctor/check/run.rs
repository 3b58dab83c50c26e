//! One run of a command, within limits of time and output.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::Ran;
use crate::exec::settings::Program;

/// Output that is kept, and the end of it that is shown.
const OUTPUT_BYTES: u64 = 64 << 10;
pub const SHOWN_CHARS: usize = 300;

/// End of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Its time was over, and it was killed.
    pub over: bool,
    pub limit: Duration,
    /// Beginning of its standard output.
    pub out: String,
    /// Beginning of all its output.
    pub text: String,
}

impl Ended {
    pub fn ran(self, program: &Program) -> Ran {
        Ran { passed: self.code.is_some_and(|code| program.exit_codes.contains(&code)), says: self.says() }
    }

    pub fn says(&self) -> String {
        let ended = match (self.code, self.signal) {
            _ if self.over => format!("no end within {} s", self.limit.as_secs()),
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        format!("{ended}{}", tail(&self.text))
    }
}

/// Runs a command within limits of time and output. When the time is over, `stop` ends processes outside the command's process
/// group.
pub fn run(command: &mut Command, limit: Duration, stop: &dyn Fn()) -> Result<Ended, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let (sender, output) = mpsc::channel();
    read(child.stdout.take(), true, sender.clone());
    read(child.stderr.take(), false, sender);
    let status = wait(&mut child, Instant::now() + limit)?;
    if status.is_none() {
        stop();
        // With all that it has started, if it has a process group of its own.
        let _ = rustix::process::kill_process_group(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::KILL,
        );
        let _ = child.kill();
        let _ = child.wait();
    }
    // A descendant may keep a pipe open for ever.
    let (mut text, mut out) = (String::new(), String::new());
    for (is_out, read) in (0..2).filter_map(|_| output.recv_timeout(Duration::from_secs(1)).ok()) {
        text.push_str(&read);
        if is_out {
            out = read;
        }
    }
    let (code, signal) = (status.and_then(|status| status.code()), status.and_then(|status| status.signal()));
    Ok(Ended { code, signal, over: status.is_none(), limit, out, text })
}

fn wait(child: &mut Child, until: Instant) -> Result<Option<ExitStatus>, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) if Instant::now() > until => return Ok(None),
            Ok(None) => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Reads to the end and keeps the first bytes.
fn read(pipe: Option<impl Read + Send + 'static>, is_out: bool, sender: mpsc::Sender<(bool, String)>) {
    let Some(mut pipe) = pipe else { return };
    thread::spawn(move || {
        let mut kept = Vec::new();
        let _ = (&mut pipe).take(OUTPUT_BYTES).read_to_end(&mut kept);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        let _ = sender.send((is_out, String::from_utf8_lossy(&kept).into_owned()));
    });
}

/// The end of an output on one line, without control characters.
pub fn tail(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: Vec<char> = line.chars().filter(|c| !c.is_control()).collect();
    let from = shown.len().saturating_sub(SHOWN_CHARS);
    match shown.is_empty() {
        true => String::new(),
        false => format!(": {}{}", if from > 0 { "… " } else { "" }, shown[from..].iter().collect::<String>()),
    }
}
