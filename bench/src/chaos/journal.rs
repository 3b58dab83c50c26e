//! What the farm's clients and light agents saw, kept outside the farm: the oracle's side of the story.
//!
//! Each line is written and flushed before what it announces is begun, and after what it reports is known, so that it can
//! be read when the harness itself was killed; the oracle reads the copy in memory.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use pcfarm_proto::ids::JobId;

/// How a call ended, as far as its caller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was begun.
    Started,
    /// It was done: the farm said so.
    Done(JobId),
    /// It was refused: it must not have happened.
    Refused,
    /// Nobody said. It happened, whole, or it did not.
    Unknown,
}

/// A job that a client asked for.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Its idempotency key.
    pub key: String,
    pub job_type: &'static str,
    /// Keys and payloads.
    pub problems: Vec<(String, String)>,
    pub known: Known,
    pub cancelled: Cancelled,
}

/// Whether its client has asked for a job to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    No,
    /// And does not know what has become of that.
    Asked,
    /// It was told that it is.
    Done,
    /// It was told that it had ended before.
    TooLate,
}

/// What a light agent was told of a checkout that it delivered, whole.
#[derive(Clone, Debug)]
pub struct Told {
    pub author: String,
    pub checkout_id: i64,
    pub problems: Vec<i64>,
    pub verdict: Verdict,
    /// When it was delivered, and when the verdict came.
    pub delivered_at: Instant,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Stored, now or before.
    Accepted,
    /// Not stored, and never to be.
    Refused,
}

#[derive(Debug)]
pub struct Journal {
    file: Mutex<File>,
    submissions: Mutex<Vec<Submission>>,
    told: Mutex<Vec<Told>>,
    odd: Mutex<Vec<String>>,
    /// Jobs whose hold nobody has answered: it may come into effect after all that their clients have done about it.
    may_be_held: Mutex<Vec<JobId>>,
}

impl Journal {
    pub fn at(path: &Path) -> anyhow::Result<Journal> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("opening the journal {}", path.display()))?;
        Ok(Journal {
            file: Mutex::new(file),
            submissions: Mutex::default(),
            told: Mutex::default(),
            odd: Mutex::default(),
            may_be_held: Mutex::default(),
        })
    }

    fn note(&self, line: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes()).expect("the journal can be written");
    }

    /// A call that is about to be made. Its place in the journal.
    pub fn begin(&self, submission: Submission) -> usize {
        self.note(&format!("started {} {} {}", submission.key, submission.job_type, submission.problems.len()));
        let mut submissions = self.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        submissions.push(submission);
        submissions.len() - 1
    }

    pub fn end(&self, place: usize, known: Known) {
        let mut submissions = self.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        submissions[place].known = known;
        let line = format!("{known:?} {}", submissions[place].key);
        drop(submissions);
        self.note(&line);
    }

    pub fn cancelled(&self, place: usize, cancelled: Cancelled) {
        let mut submissions = self.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        submissions[place].cancelled = cancelled;
        let line = format!("cancelled {cancelled:?} {}", submissions[place].key);
        drop(submissions);
        self.note(&line);
    }

    pub fn may_be_held(&self, job: JobId) {
        self.note(&format!("job {job} may be held yet"));
        self.may_be_held.lock().unwrap_or_else(PoisonError::into_inner).push(job);
    }

    pub fn told(&self, told: Told) {
        self.note(&format!("{:?} {} checkout {}", told.verdict, told.author, told.checkout_id));
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }

    /// What nobody should have been told.
    pub fn odd(&self, what: String) {
        self.note(&what);
        self.odd.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    pub fn all_odd(&self) -> Vec<String> {
        self.odd.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn all_that_may_be_held(&self) -> Vec<JobId> {
        self.may_be_held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn submissions(&self) -> Vec<Submission> {
        self.submissions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn verdicts(&self) -> Vec<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
