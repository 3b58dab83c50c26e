//! How the program ends: its exit codes, and the one place where gRPC codes become them.

use std::fmt;
use std::io;

use tonic::{Code, Status};

use crate::text;

/// What a script may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotReachable = 3,
    NotFound = 4,
    NotAllowed = 5,
    TimedOut = 6,
    /// A job that was waited for ended with failed problems.
    ProblemsFailed = 7,
}

/// An error with its exit code. Errors without one are [`Exit::Failed`].
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    message: String,
}

impl Failure {
    pub fn of(exit: Exit, message: impl Into<String>) -> anyhow::Error {
        let message = message.into();
        anyhow::Error::new(Failure { exit, message })
    }

    pub fn usage(message: impl Into<String>) -> anyhow::Error {
        Failure::of(Exit::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Whoever read our standard output has left, as `head` does. That is no error of ours.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output")
    }
}

impl std::error::Error for ReaderGone {}

/// The outcome of writing to standard output.
pub fn written<T>(outcome: io::Result<T>) -> anyhow::Result<T> {
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => anyhow::Error::new(ReaderGone),
        _ => anyhow::Error::new(error).context("writing to standard output"),
    })
}

/// What a call's status means to whoever started this program.
pub fn of_status(status: &Status) -> Exit {
    match status.code() {
        Code::Ok => Exit::Done,
        Code::InvalidArgument => Exit::Usage,
        Code::Unavailable => Exit::NotReachable,
        Code::NotFound => Exit::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => Exit::NotAllowed,
        Code::DeadlineExceeded => Exit::TimedOut,
        // tonic's client reports its own deadline, and a connection that broke, under these codes.
        Code::Cancelled | Code::Unknown | Code::Internal => {
            if status.code() == Code::Cancelled && status.message() == "Timeout expired" {
                Exit::TimedOut
            } else if broke_on_the_way(status) {
                Exit::NotReachable
            } else {
                Exit::Failed
            }
        }
        Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss => Exit::Failed,
    }
}

/// A status that no server sent: it has the transport's error as its source.
fn broke_on_the_way(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Tells a person what went wrong, unless nobody reads any more, and gives the exit code.
pub fn report(error: &anyhow::Error) -> Exit {
    if error.chain().any(|e| e.is::<ReaderGone>()) {
        return Exit::Done;
    }
    let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
    let message = text::plain_lines(&without_repetition(&chain));
    // Nothing can be done when standard error is closed, too.
    let _ = io::Write::write_all(&mut io::stderr(), format!("error: {message}\n").as_bytes());
    let failure = error.chain().find_map(|e| e.downcast_ref::<Failure>());
    failure.map_or(Exit::Failed, |failure| failure.exit)
}

/// Joins a chain of errors, leaving out causes that their parent has already told.
fn without_repetition(chain: &[String]) -> String {
    let mut told: Vec<&str> = Vec::new();
    for message in chain {
        if !told.iter().any(|earlier| earlier.contains(message.as_str())) {
            told.push(message);
        }
    }
    told.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn every_grpc_code_has_an_exit_code() {
        let cases = [
            (Status::invalid_argument(""), Exit::Usage),
            (Status::unavailable(""), Exit::NotReachable),
            (Status::not_found(""), Exit::NotFound),
            (Status::permission_denied(""), Exit::NotAllowed),
            (Status::unauthenticated(""), Exit::NotAllowed),
            (Status::deadline_exceeded(""), Exit::TimedOut),
            (Status::cancelled("Timeout expired"), Exit::TimedOut),
            (Status::cancelled("by the server"), Exit::Failed),
            (Status::failed_precondition(""), Exit::Failed),
            (Status::internal("a bug"), Exit::Failed),
            (Status::from_error(Box::new(io::Error::from(io::ErrorKind::ConnectionReset))), Exit::NotReachable),
        ];
        for (status, expected) in cases {
            assert_eq!(of_status(&status), expected, "{status:?}");
        }
    }

    #[test]
    fn a_reader_who_left_is_not_an_error() {
        let gone = written::<()>(Err(io::ErrorKind::BrokenPipe.into())).context("writing");
        assert_eq!(report(&gone.expect_err("made above")), Exit::Done);
        let elsewhere = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(report(&elsewhere), Exit::Failed);
    }

    #[test]
    fn the_code_survives_context() {
        let error = Err::<(), _>(Failure::of(Exit::NotFound, "no job 7")).context("showing job 7");
        assert_eq!(report(&error.expect_err("made above")), Exit::NotFound);
        assert_eq!(report(&anyhow::anyhow!("other")), Exit::Failed);
    }

    #[test]
    fn causes_are_told_once() {
        let chain = ["a: b".to_owned(), "b".to_owned(), "c".to_owned()];
        assert_eq!(without_repetition(&chain), "a: b: c");
    }
}
