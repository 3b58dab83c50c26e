//! Who waits for work, in the order in which they asked. Pure: each of its steps costs the same however many wait.

use crate::session::Session;
use std::collections::VecDeque;
use std::sync::Arc;

/// A session is in it once: its own mark says whether it is.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<Arc<Session>>,
    /// The lanes in sight have nothing for these: asked again after the next look.
    idle: Vec<Arc<Session>>,
}

impl Queue {
    /// Puts a session that asks for work at the end, unless it is here already.
    pub fn join(&mut self, session: Arc<Session>) {
        if session.wants_work() && !session.mark_queued(true) {
            self.waiting.push_back(session);
        }
    }

    /// Of those that are not idle.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Idle or not.
    pub fn anybody(&self) -> bool {
        !self.waiting.is_empty() || !self.idle.is_empty()
    }

    /// The first that still wants work.
    pub fn first(&mut self) -> Option<&Arc<Session>> {
        while self.waiting.front().is_some_and(|session| !session.wants_work()) {
            let session = self.waiting.pop_front().expect("there is a front");
            self.leave(&session);
        }
        self.waiting.front()
    }

    /// Takes out the first that still wants work; it stays marked, to be put back or to leave.
    pub fn pop(&mut self) -> Option<Arc<Session>> {
        self.first()?;
        self.waiting.pop_front()
    }

    /// Back at the end.
    pub fn push(&mut self, session: Arc<Session>) {
        self.waiting.push_back(session);
    }

    /// Back at the front, in this order.
    pub fn put_first(&mut self, sessions: Vec<Arc<Session>>) {
        sessions.into_iter().rev().for_each(|session| self.waiting.push_front(session));
    }

    /// It was taken out and does not come back before it asks again.
    pub fn leave(&self, session: &Session) {
        session.mark_queued(false);
    }

    /// There is nothing for the first.
    pub fn set_idle(&mut self) {
        self.idle.extend(self.waiting.pop_front());
    }

    /// There may be something for the idle ones.
    pub fn wake_idle(&mut self) {
        self.waiting.extend(self.idle.drain(..));
        self.first();
    }
}
