//! What a program can do wrong, in words for whoever reads the problem's message.
//!
//! Owns the texts, and what is kept of standard error. They name what happened and the limit that was met, and never guess.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fed::STDERR_BYTES_LIMIT;

/// Most bytes of standard error in a problem's message: what fits behind the reason in what the farm stores.
const STDERR_IN_MESSAGE: usize = 3000;

/// Most bytes of an answer that a message cites.
const CITED: usize = 200;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with code {code}"),
            Exit::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "was ended by signal {signal} ({name})"),
                None => write!(f, "was ended by signal {signal}"),
            },
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ: it wrote a file larger than its disk limit",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// Why a problem failed, as its supervisor saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    #[error("the program cannot be started: {0}")]
    NotStarted(String),
    #[error("the program {0}")]
    Exited(Exit),
    #[error("the program {0} before it answered")]
    EndedUnanswered(Exit),
    #[error("the program closed its standard input or output before it answered")]
    Closed,
    #[error("the program's answer ends after {bytes} bytes without a line end ({how})")]
    HalfLine { bytes: usize, how: String },
    #[error("the program's answer is not JSON ({why}): {cited}")]
    NotJson { why: String, cited: String },
    #[error("the program's answer is not an object with either \"result\" or \"error\": {0}")]
    NotAnAnswer(String),
    #[error("the program wrote something before it had read its question: {0}")]
    Unread(String),
    #[error("the program's answer is for another question, by its \"id\": {0}")]
    OtherQuestion(String),
    #[error("the program wrote more than one line for one question: {0}")]
    ExtraOutput(String),
    #[error("the program wrote more than {0} bytes; that is more than the farm stores")]
    TooMuchOutput(usize),
    #[error("the program took longer than its time limit of {} s", .0 / 1000.0)]
    TimedOut(Milliseconds),
    #[error("the program and what it started used {} MiB of memory; its limit is {} MiB", used >> 20, limit >> 20)]
    Memory { used: u64, limit: u64 },
    #[error("the program started {started} processes; its limit is {limit}")]
    Processes { started: u32, limit: u32 },
    #[error("the program wrote {} MiB to its directory; its limit is {} MiB", used >> 20, limit >> 20)]
    Disk { used: u64, limit: u64 },
    #[error("the program made more than {0} levels of directories")]
    Levels(usize),
    #[error("the program closed a directory of its own to the agent, which must know how much is in it")]
    Unreadable,
}

/// A number for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Milliseconds(pub u64);

impl std::ops::Div<f64> for &Milliseconds {
    type Output = f64;

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn div(self, by: f64) -> f64 {
        self.0 as f64 / by
    }
}

/// The beginning of what a program wrote, on one line.
pub fn cite(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(CITED)]);
    let more = if bytes.len() > CITED { " …" } else { "" };
    format!("{:?}{more}", text.trim_end())
}

/// The failure and the end of standard error as a problem's message.
pub fn message(reason: &str, stderr: &str) -> String {
    let stderr = stderr.trim_end();
    if stderr.is_empty() {
        return reason.to_owned();
    }
    let start = stderr.ceil_char_boundary(stderr.len().saturating_sub(STDERR_IN_MESSAGE));
    let cut = if start > 0 { " ends" } else { "" };
    format!("{reason}; its standard error{cut}:\n{}", &stderr[start..])
}

/// The last bytes that went through.
#[derive(Default)]
pub struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    pub fn push(&mut self, bytes: &[u8]) {
        let new = &bytes[bytes.len().saturating_sub(STDERR_BYTES_LIMIT)..];
        let over = (self.bytes.len() + new.len()).saturating_sub(STDERR_BYTES_LIMIT);
        self.bytes.drain(..over.min(self.bytes.len()));
        self.bytes.extend(new);
    }

    /// What there is, as text that the farm can store; nothing is left.
    pub fn take(&mut self) -> String {
        let bytes: Vec<u8> = std::mem::take(&mut self.bytes).into();
        String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_say_what_happened() {
        for (failure, expected) in [
            (Failure::Exited(Exit::Code(3)), "the program exited with code 3"),
            (
                Failure::EndedUnanswered(Exit::Signal(11)),
                "the program was ended by signal 11 (SIGSEGV) before it answered",
            ),
            (Failure::TimedOut(Milliseconds(1500)), "the program took longer than its time limit of 1.5 s"),
            (
                Failure::Memory { used: 600 << 20, limit: 512 << 20 },
                "the program and what it started used 600 MiB of memory; its limit is 512 MiB",
            ),
        ] {
            assert_eq!(failure.to_string(), expected);
        }
        assert_eq!(message("why", ""), "why");
        assert_eq!(message("why", "trace\n"), "why; its standard error:\ntrace");
        let long = message("why", &"ä".repeat(4000));
        assert!(long.len() < 3100 && long.starts_with("why; its standard error ends:\nä"), "{}", long.len());
    }

    #[test]
    fn a_tail_keeps_the_end() {
        let mut tail = Tail::default();
        for n in 0..10_000 {
            tail.push(format!("{n:04} ").as_bytes());
        }
        let text = tail.take();
        assert!(text.len() == STDERR_BYTES_LIMIT && text.ends_with("9998 9999 "), "{}", text.len());
        tail.push(&vec![b'x'; 3 * STDERR_BYTES_LIMIT]);
        tail.push(b"\0\xffend");
        let text = tail.take();
        assert!(text.ends_with("x\u{fffd}\u{fffd}end"), "{text}");
        assert_eq!(tail.take(), "");
    }
}
