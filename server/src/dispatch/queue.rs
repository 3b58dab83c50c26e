//! Who waits for work, in the order in which they asked. Pure.
//!
//! Workstations that can run the same are one line: who waits for what there is none of costs the others nothing, and
//! each step costs as much as there are lines, however many wait in them.

use crate::session::Session;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// A session is in it once: its own mark says whether it is.
#[derive(Debug, Default)]
pub struct Queue {
    lines: HashMap<Arc<str>, VecDeque<Waiting>>,
    tickets: u64,
}

/// A session with its place in the order.
#[derive(Debug)]
pub struct Waiting {
    ticket: u64,
    pub session: Arc<Session>,
}

impl Queue {
    /// Puts a session that asks for work at the end, unless it is here already.
    pub fn join(&mut self, session: Arc<Session>) {
        if session.enter_queue() {
            self.put_last(session);
        }
    }

    /// At the end, a session that was taken out.
    pub fn put_last(&mut self, session: Arc<Session>) {
        self.tickets += 1;
        let waiting = Waiting { ticket: self.tickets, session };
        self.line(&waiting).push_back(waiting);
    }

    /// Back at its place, the one that was taken out last.
    pub fn put_back(&mut self, waiting: Waiting) {
        self.line(&waiting).push_front(waiting);
    }

    fn line(&mut self, waiting: &Waiting) -> &mut VecDeque<Waiting> {
        self.lines.entry(waiting.session.kind.clone()).or_default()
    }

    /// It was taken out and does not come back before it asks again.
    pub fn leave(&self, session: &Session) {
        session.leave_queue();
    }

    /// Lets go of those who want no work any more, wherever they stand, if there are more here than are connected: who
    /// goes away while others wait before it would stay for as long as they do.
    pub fn prune(&mut self, connected: usize) {
        if self.lines.values().map(VecDeque::len).sum::<usize>() <= connected {
            return;
        }
        for line in self.lines.values_mut() {
            line.retain(|waiting| {
                let stays = waiting.session.wants_work();
                if !stays {
                    waiting.session.leave_queue();
                }
                stays
            });
        }
        self.lines.retain(|_, line| !line.is_empty());
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Does anybody wait who can run this?
    pub fn wants(&self, controller: &str) -> bool {
        self.lines.values().filter_map(VecDeque::front).any(|first| first.session.controllers.contains(controller))
    }

    /// What the first is to be served from, of those for whom there is something, and the lines that are to be served
    /// from the same.
    pub fn turn<L: PartialEq>(&mut self, best: impl Fn(&HashSet<String>) -> Option<L>) -> Option<(L, Vec<Arc<str>>)> {
        self.lines.retain(|_, line| has_first(line));
        let firsts = self.lines.iter().filter_map(|(kind, line)| {
            let first = line.front()?;
            Some((first.ticket, best(&first.session.controllers)?, kind))
        });
        let mut firsts: Vec<_> = firsts.collect();
        firsts.sort_unstable_by_key(|&(ticket, ..)| ticket);
        let mut firsts = firsts.into_iter();
        let (_, lane, kind) = firsts.next()?;
        let mut kinds = vec![kind.clone()];
        kinds.extend(firsts.filter(|(_, other, _)| *other == lane).map(|(.., kind)| kind.clone()));
        Some((lane, kinds))
    }

    /// Takes out the first of these lines who still wants work; it stays marked, to be put back or to leave.
    pub fn pop(&mut self, kinds: &[Arc<str>]) -> Option<Waiting> {
        let mut oldest: Option<(u64, &Arc<str>)> = None;
        for kind in kinds {
            let Some(line) = self.lines.get_mut(kind) else { continue };
            if !has_first(line) {
                self.lines.remove(kind);
                continue;
            }
            let ticket = line[0].ticket;
            if oldest.is_none_or(|(other, _)| ticket < other) {
                oldest = Some((ticket, kind));
            }
        }
        self.lines.get_mut(oldest?.1)?.pop_front()
    }
}

/// Is there a first who still wants work? Those before leave.
fn has_first(line: &mut VecDeque<Waiting>) -> bool {
    while line.front().is_some_and(|first| !first.session.wants_work()) {
        if let Some(gone) = line.pop_front() {
            gone.session.leave_queue();
        }
    }
    !line.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::WorkstationId;
    use pcfarm_proto::v1;
    use pcfarm_sql::presence::Connection;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    fn session(id: i64, controllers: &[&str]) -> Arc<Session> {
        let controllers = controllers.iter().map(|&name| name.to_owned()).collect();
        let hello = v1::Hello { controllers, cores: 1, ..v1::Hello::default() };
        let workstation_id = WorkstationId(id);
        let connection = Connection { workstation_id, session: 1, drain: false, same_instance: false, was_dead: false };
        let session = Session::new(&connection, &hello, mpsc::channel(1).0, CancellationToken::new());
        session.add_credit(1);
        Arc::new(session)
    }

    fn queue(sessions: &[Arc<Session>]) -> Queue {
        let mut queue = Queue::default();
        sessions.iter().for_each(|session| queue.join(session.clone()));
        queue
    }

    fn popped(queue: &mut Queue, kinds: &[Arc<str>]) -> Option<i64> {
        queue.pop(kinds).map(|waiting| waiting.session.workstation_id.0)
    }

    /// A farm that has work for these controllers, from a lane of that name.
    fn with<'a>(work: &'a [&'a str]) -> impl Fn(&HashSet<String>) -> Option<&'a str> {
        |controllers| work.iter().find(|&&lane| controllers.contains(lane)).copied()
    }

    #[test]
    fn those_who_asked_first_are_served_first_whatever_they_run() {
        let sessions = [
            session(1, &["b"]),
            session(2, &["a", "b"]),
            session(3, &["a"]),
            session(4, &["b", "a"]),
            session(5, &["a"]),
        ];
        let mut queue = queue(&sessions);
        queue.join(sessions[0].clone());
        assert!(queue.turn(with(&[])).is_none(), "there is nothing for anybody");
        let (lane, kinds) = queue.turn(with(&["a"])).expect("some can run it");
        assert_eq!((lane, kinds.len()), ("a", 2), "the order of a workstation's controllers does not matter");
        let order: Vec<i64> = std::iter::from_fn(|| popped(&mut queue, &kinds)).collect();
        assert_eq!(order, [2, 3, 4, 5]);
        let (lane, kinds) = queue.turn(with(&["a", "b"])).expect("one is left");
        assert_eq!((lane, popped(&mut queue, &kinds)), ("b", Some(1)), "nobody is in it twice");
        assert!(queue.is_empty() || queue.turn(with(&["a", "b"])).is_none());
    }

    #[test]
    fn a_turn_is_for_those_who_are_served_from_the_same() {
        let mut queue = queue(&[session(1, &["b"]), session(2, &["a", "b"]), session(3, &["b"])]);
        // The second would rather run a: that is another turn.
        let (lane, kinds) = queue.turn(with(&["a", "b"])).expect("there is work");
        assert_eq!((lane, popped(&mut queue, &kinds), popped(&mut queue, &kinds)), ("b", Some(1), Some(3)));
        assert_eq!(popped(&mut queue, &kinds), None);
        assert!(queue.wants("a") && queue.wants("b") && !queue.wants("c"));
    }

    #[test]
    fn who_is_put_back_keeps_its_place_and_who_changed_its_mind_leaves() {
        let sessions = [session(1, &["a"]), session(2, &["a"]), session(3, &["a"])];
        let mut queue = queue(&sessions);
        let (_, kinds) = queue.turn(with(&["a"])).expect("there is work");
        let first = queue.pop(&kinds).expect("all wait");
        queue.put_back(first);
        sessions[1].set_suspended(true);
        let first = queue.pop(&kinds).expect("two wait").session;
        assert_eq!(first.workstation_id.0, 1);
        queue.put_last(first);
        assert_eq!(popped(&mut queue, &kinds), Some(3));
        assert_eq!(popped(&mut queue, &kinds), Some(1));
        assert!(queue.is_empty() || queue.turn(with(&["a"])).is_none());
        sessions[1].set_suspended(false);
        queue.join(sessions[1].clone());
        assert_eq!(popped(&mut queue, &kinds), Some(2), "it may ask again");
    }

    #[test]
    fn who_went_away_behind_others_is_let_go() {
        let sessions = [session(1, &["a"]), session(2, &["a"]), session(3, &["a"])];
        let mut queue = queue(&sessions);
        sessions[1].ended.cancel();
        queue.prune(3);
        assert_eq!(Arc::strong_count(&sessions[1]), 2, "as many are here as are connected");
        queue.prune(2);
        assert_eq!(Arc::strong_count(&sessions[1]), 1, "nobody but the test has it");
        let (_, kinds) = queue.turn(with(&["a"])).expect("there is work");
        assert_eq!((popped(&mut queue, &kinds), popped(&mut queue, &kinds)), (Some(1), Some(3)));
        assert_eq!(popped(&mut queue, &kinds), None);
    }
}
