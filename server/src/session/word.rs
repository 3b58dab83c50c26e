//! Words to an agent about its lease.
//!
//! An agent must stop its programs before another workstation begins their problems. It cannot know by itself when the server heard
//! it last: on a slow link its messages wait behind data. So the server says it, by its own clock, and the agent derives the
//! distance between both clocks from the messages that the server has counted.
//!
//! A lease counts from the last sign of life, but from no later than the last pulse in the database: when this server crashes,
//! another one knows of nothing after that pulse.

use super::Session;
use super::progress::micros;
use pcfarm_proto::v1::{self, server_message};
use std::time::{Duration, Instant};

/// Words in a lease, at most.
const WORDS_A_LEASE: u32 = 16;

/// Time after a word, as a part of the lease, when bytes of an unfinished message or a later pulse are worth another. On a slow link HTTP/2
/// collects messages in frames of 16 KiB, so that none is whole for two seconds.
const UNFINISHED_PART_OF_LEASE: u32 = 6;

/// Messages of one agent, and the last word about its lease.
#[derive(Debug)]
pub(super) struct Words {
    /// Messages that have come, from Hello on, and when the last of them came.
    messages: u64,
    message_at: Instant,
    /// When the last word was sent, and the beginning of the lease that it named.
    told: Option<(Instant, Instant)>,
}

impl Words {
    pub(super) fn new(hello_at: Instant) -> Words {
        Words { messages: 1, message_at: hello_at, told: None }
    }

    pub(super) fn message_came(&mut self, at: Instant) {
        self.messages += 1;
        self.message_at = at;
    }

    /// True if another word may be sent.
    fn is_due(&self, now: Instant, lease: Duration) -> bool {
        self.told.is_none_or(|(at, _)| now >= at + lease / WORDS_A_LEASE)
    }

    /// Returns a word that names this beginning of the lease, unless the agent knows it already.
    fn next(&mut self, lease_since: Instant, now: Instant) -> Option<v1::Heard> {
        if self.told.is_some_and(|(_, known)| lease_since <= known) {
            return None;
        }
        self.told = Some((now, lease_since));
        let Words { messages, message_at, .. } = *self;
        Some(v1::Heard { messages, message_us: micros(message_at), lease_us: micros(lease_since) })
    }
}

impl Session {
    /// Returns a word about the lease that is to be sent now. None: the workstation holds nothing, or its agent has been told a moment
    /// ago. `recorded`: the time of the last pulse in the database; none: the database does not answer, so that no server can
    /// declare a workstation dead.
    fn word(&self, now: Instant, recorded: impl FnOnce() -> Option<Instant>) -> Option<v1::Heard> {
        let mut state = self.state();
        if state.sent.is_empty() || !state.words.is_due(now, self.lease) {
            return None;
        }
        let heard = self.progress.heard(state.heard, self.piece_deadline);
        let since = recorded().map_or(heard, |recorded| recorded.min(heard));
        state.words.next(since, now)
    }

    /// Tells the agent about its lease if that is due. Returns true if it did.
    pub fn say_word(&self, recorded: impl FnOnce() -> Option<Instant>) -> bool {
        let Some(heard) = self.word(Instant::now(), recorded) else { return false };
        let message = v1::ServerMessage { message: Some(server_message::Message::Heard(heard)) };
        // Without room for it the agent has much to read, and the next word says more.
        self.out.try_send(Ok(message).into()).is_ok()
    }

    /// Time after which an unfinished message is worth a word.
    pub fn unfinished_wait(&self) -> Duration {
        self.lease / UNFINISHED_PART_OF_LEASE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::CheckoutId;

    fn holding() -> Session {
        let session = Session::that_waits(1, &v1::Hello::default());
        session.announce(CheckoutId(1), ("type", "exec:solver"), 1, false);
        session
    }

    #[test]
    fn an_agent_is_told_when_it_was_heard() {
        let session = holding();
        session.heard();
        let now = Instant::now();
        let word = session.word(now, || None).expect("a word");
        assert_eq!(word.messages, 2);
        assert_eq!(word.message_us, word.lease_us);
        assert!(word.lease_us <= micros(now));
        assert_eq!(session.word(now, || None), None, "told a moment ago");
        let later = now + session.lease;
        assert_eq!(session.word(later, || None), None, "nothing has come since");
        session.heard();
        assert_eq!(session.word(later, || None).expect("a word").messages, 3);
    }

    #[test]
    fn a_lease_counts_from_no_later_than_the_last_pulse() {
        crate::session::progress::start_clock();
        std::thread::sleep(Duration::from_millis(2));
        let session = holding();
        session.heard();
        let (now, heard) = (Instant::now(), session.state().words.message_at);
        let pulse = heard.checked_sub(Duration::from_millis(1)).expect("the process is older");
        let word = session.word(now, || Some(pulse)).expect("a word");
        assert_eq!((word.message_us, word.lease_us), (micros(heard), micros(pulse)));
        let later = now + session.lease;
        assert_eq!(session.word(later, || Some(pulse)), None, "no pulse since");
        let word = session.word(later, || Some(later)).expect("the pulse has recorded what was heard before");
        assert_eq!(word.lease_us, micros(heard));
    }

    #[test]
    fn a_workstation_that_holds_nothing_needs_no_word() {
        let session = Session::that_waits(1, &v1::Hello::default());
        session.heard();
        assert_eq!(session.word(Instant::now(), || None), None);
    }
}
