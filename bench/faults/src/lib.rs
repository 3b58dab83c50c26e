//! Faults on purpose, for the harness: bugs that a program can be started with, and points where one can be made to
//! crash.
//!
//! Without the feature `on`, which no released program has, all of this is nothing. With it, a program looks at its
//! environment:
//!
//! - `PCFARM_PLANTED_BUG` names a [`Bug`] that it is to have.
//! - `PCFARM_PLANTED_STATEMENTS` names a file of statements' texts that are to be others: see [`statement`].
//! - `PCFARM_CRASH_AT` names a [`CrashPoint`] at which it is to abort, as `name` or, to get there so many times before, as
//!   `name:times`.

use std::borrow::Cow;

macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$what:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$what])* $variant,)+
        }

        impl $type {
            pub const ALL: &[$type] = &[$($type::$variant,)+];

            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }

            pub fn named(name: &str) -> Option<$type> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

named! {
    /// A classic bug in the code of a program. What is wrong in SQL is planted in the database.
    Bug {
        /// The server tells an agent that its results are stored, and then stores them.
        AcknowledgesBeforeCommit = "acknowledges-before-commit",
        /// The server tells a client that its job is loaded, and then commits it.
        AnswersBeforeCommit = "answers-before-commit",
        /// The server takes results for problems that are not of their checkout.
        AcceptsStrangers = "accepts-strangers",
        /// The dispatcher does nothing more after an error of the database.
        StopsHandingOut = "stops-handing-out",
        /// The server does not look at a checkout's token.
        AcceptsAnyToken = "accepts-any-token",
        /// The server takes a unique violation to say that everything is stored already.
        TakesViolationForDone = "takes-violation-for-done",
        /// The server closes what an agent is done with, whatever has become of it.
        ClosesWhatIsRevoked = "closes-what-is-revoked",
        /// The server takes the end of an upload's stream for the client's word that this is all.
        CommitsTornUploads = "commits-torn-uploads",
        /// The dispatcher remembers the last lane that it has seen, and looks at later ones only.
        SkipsLateLoads = "skips-late-loads",
        /// The dispatcher sends more than it has checked out.
        ShipsMoreThanItChecksOut = "ships-more-than-it-checks-out",
        /// What an agent does not hold is never taken back.
        NeverTakesBack = "never-takes-back",
        /// The agent forgets what was not acknowledged when its connection ends.
        ForgetsDeliveries = "forgets-deliveries",
    }
}

named! {
    /// A point around a commit.
    CrashPoint {
        SubmissionCame = "submission-came",
        SubmissionCommitted = "submission-committed",
        UploadLoaded = "upload-loaded",
        UploadCommitted = "upload-committed",
        JobChanged = "job-changed",
        WorkstationConnected = "workstation-connected",
        WorkstationSettled = "workstation-settled",
        SilenceMarked = "silence-marked",
        Pulsed = "pulsed",
        CheckOutDecided = "check-out-decided",
        CheckOutCommitted = "check-out-committed",
        CheckOutSent = "check-out-sent",
        ResultsCame = "results-came",
        ResultsCommitted = "results-committed",
        HalfOfResultsCommitted = "half-of-results-committed",
        CheckoutHandedBack = "checkout-handed-back",
        ProblemsHandedBack = "problems-handed-back",
        ResultsAcknowledged = "results-acknowledged",
        UnreceivedTakenBack = "unreceived-taken-back",
        LanesExhausted = "lanes-exhausted",
        JobEnded = "job-ended",
        ProgressFolded = "progress-folded",
        WorkstationsDeclaredDead = "workstations-declared-dead",
        CheckoutsRevoked = "checkouts-revoked",
        CheckoutReceived = "checkout-received",
        ProblemsSolved = "problems-solved",
        ResultsDelivered = "results-delivered",
        AlertsClaimed = "alerts-claimed",
        AlertDelivered = "alert-delivered",
        SchedulesClaimed = "schedules-claimed",
        SchedulesTriggered = "schedules-triggered",
        TickCommitted = "tick-committed",
        ScheduleLoaded = "schedule-loaded",
        AcknowledgementCame = "acknowledgement-came",
        FilePieceStored = "file-piece-stored",
        FileStored = "file-stored",
        FileFetched = "file-fetched",
        OutputSent = "output-sent",
    }
}

/// Is this program to have this bug?
#[inline]
pub fn planted(bug: Bug) -> bool {
    cfg!(feature = "on") && selected::bug() == Some(bug)
}

/// Ends the program, without a word to anybody, if it was started to do so here.
#[inline]
pub fn crash_point(point: CrashPoint) {
    if cfg!(feature = "on") && selected::crashes_at(point) {
        eprintln!("crashing at {}", point.name());
        std::process::abort();
    }
}

/// In a file of edits, between what is looked for in a statement's text and what takes its place, and after each pair: the
/// characters that ASCII has for units and records.
pub const BECOMES: char = '\u{1f}';
pub const PAIR: char = '\u{1e}';

/// A statement's text, or what it is to be instead.
#[inline]
pub fn statement(text: &str) -> Cow<'_, str> {
    if cfg!(feature = "on") { selected::statement(text) } else { Cow::Borrowed(text) }
}

mod selected {
    use super::{Bug, CrashPoint};
    use std::borrow::Cow;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    pub fn bug() -> Option<Bug> {
        static BUG: OnceLock<Option<Bug>> = OnceLock::new();
        *BUG.get_or_init(|| {
            let name = std::env::var("PCFARM_PLANTED_BUG").ok()?;
            let bug = Bug::named(&name).unwrap_or_else(|| panic!("PCFARM_PLANTED_BUG: there is no bug {name:?}"));
            eprintln!("PCFARM_PLANTED_BUG: this program has the bug {name:?}, for the test of tests");
            Some(bug)
        })
    }

    struct Crash {
        point: CrashPoint,
        before: AtomicU32,
    }

    pub fn crashes_at(point: CrashPoint) -> bool {
        static CRASH: OnceLock<Option<Crash>> = OnceLock::new();
        let crash = CRASH.get_or_init(|| {
            let text = std::env::var("PCFARM_CRASH_AT").ok()?;
            let (name, times) = text.split_once(':').unwrap_or((&text, "0"));
            let crash = CrashPoint::named(name).zip(times.parse().ok());
            let (point, times) = crash.unwrap_or_else(|| panic!("PCFARM_CRASH_AT: there is no point {text:?}"));
            Some(Crash { point, before: AtomicU32::new(times) })
        });
        let Some(crash) = crash.as_ref().filter(|crash| crash.point == point) else { return false };
        let fewer = crash.before.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| before.checked_sub(1));
        fewer.is_err()
    }

    pub fn statement(text: &str) -> Cow<'_, str> {
        static EDITS: OnceLock<Vec<(String, String)>> = OnceLock::new();
        let edits = EDITS.get_or_init(|| {
            let Ok(path) = std::env::var("PCFARM_PLANTED_STATEMENTS") else { return Vec::new() };
            let text = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("PCFARM_PLANTED_STATEMENTS: {path}: {error}"));
            eprintln!("PCFARM_PLANTED_STATEMENTS: this program's statements are others, for the test of tests");
            let pairs = text.split_terminator(super::PAIR).filter_map(|pair| pair.split_once(super::BECOMES));
            pairs.map(|(from, to)| (from.to_owned(), to.to_owned())).collect()
        });
        let mut text = Cow::Borrowed(text);
        for (from, to) in edits {
            if text.contains(from.as_str()) {
                text = Cow::Owned(text.replace(from.as_str(), to));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_are_nobody_elses() {
        for bug in Bug::ALL {
            assert_eq!(Bug::named(bug.name()), Some(*bug));
        }
        for point in CrashPoint::ALL {
            assert_eq!(CrashPoint::named(point.name()), Some(*point));
        }
        assert_eq!(Bug::named("none"), None);
    }

    #[test]
    fn nobody_has_a_bug_unasked() {
        assert!(!Bug::ALL.iter().any(|&bug| planted(bug)));
        assert_eq!(statement("select 1"), "select 1");
    }
}
