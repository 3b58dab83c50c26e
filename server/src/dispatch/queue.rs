//! Who waits for work, in the order in which they asked. Pure.
//!
//! Workstations that can run the same are one line: who waits for what there is none of costs the others nothing, and
//! each step costs as much as there are lines, however many wait in them. Where there is something for those alone who hold
//! nothing, the first of them is looked for along its line. A workstation with free cores is served before one that would keep
//! the problems for later.

use super::requirement::Requirements;
use crate::session::Session;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Those of a line who are asked whether they hold nothing, when somebody is looked for who may be handed something.
const LOOKED_AT: usize = 16;

/// Sessions of a line that are checked for free cores before a session without free cores is served.
const FREE_LOOKED_AT: usize = 1024;

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
    /// The line it stands in.
    kind: Arc<str>,
    pub session: Arc<Session>,
}

/// What those who are served in one go need not find out for each of them.
#[derive(Debug, Default)]
pub struct Round {
    /// Lines for which there is nothing.
    nothing: HashSet<Arc<str>>,
    /// For each line the ticket before which nobody was idle and wanted work: who is idle is looked for from there on.
    busy: HashMap<Arc<str>, u64>,
    /// For each line the ticket before which no session has free cores.
    full: HashMap<Arc<str>, u64>,
}

impl Round {
    /// Place of the first session in this line that wants work and has free cores, unless many stand before it.
    fn first_free(&mut self, kind: &Arc<str>, line: &VecDeque<Waiting>) -> Option<usize> {
        let full = self.full.get(kind).copied().unwrap_or_default();
        let begin = line.partition_point(|waiting| waiting.ticket < full);
        let is_free = |waiting: &Waiting| waiting.session.is_free() && waiting.session.wants_work();
        let place = line.range(begin..).take(FREE_LOOKED_AT).position(is_free).map(|place| begin + place);
        let reached = place.or_else(|| line.len().checked_sub(1).map(|last| last.min(begin + FREE_LOOKED_AT)));
        if let Some(ticket) = reached.and_then(|reached| line.get(reached)).map(|waiting| waiting.ticket) {
            self.full.insert(kind.clone(), ticket);
        }
        place
    }

    /// Does anybody wait for whom there is nothing?
    pub fn left_somebody(&self) -> bool {
        !self.nothing.is_empty()
    }
}

impl Queue {
    /// Puts a session that asks for work at the end, unless it is here already.
    pub fn join(&mut self, session: Arc<Session>, requirements: &Requirements) {
        if session.enter_queue() {
            self.put_last(session, requirements);
        }
    }

    /// To the end, a session that was handed something by somebody else, if it still asks for more.
    pub fn move_last(&mut self, session: Arc<Session>, requirements: &Requirements) {
        if session.is_queued()
            && let Some(line) = self.lines.get_mut(&session.kind())
            && let Some(place) = line.iter().position(|waiting| Arc::ptr_eq(&waiting.session, &session))
        {
            line.remove(place);
            session.leave_queue();
        }
        self.join(session, requirements);
    }

    /// Of each line the first that holds nothing, in the order in which they asked, unless many stand before it.
    pub fn first_idle(&self) -> Vec<Arc<Session>> {
        let first = |line: &'_ VecDeque<Waiting>| line.iter().take(LOOKED_AT).position(|w| w.session.holds() == 0);
        let mut firsts: Vec<&Waiting> =
            self.lines.values().filter_map(|line| first(line).map(|place| &line[place])).collect();
        firsts.sort_unstable_by_key(|first| first.ticket);
        firsts.into_iter().map(|first| first.session.clone()).collect()
    }

    /// At the end, a session that was taken out.
    pub fn put_last(&mut self, session: Arc<Session>, requirements: &Requirements) {
        session.judge(requirements);
        self.tickets += 1;
        let waiting = Waiting { ticket: self.tickets, kind: session.kind(), session };
        self.line(&waiting).push_back(waiting);
    }

    /// Back at its place, the one that was taken out last.
    pub fn put_back(&mut self, waiting: Waiting) {
        let line = self.line(&waiting);
        let place = line.partition_point(|other| other.ticket < waiting.ticket);
        line.insert(place, waiting);
    }

    fn line(&mut self, waiting: &Waiting) -> &mut VecDeque<Waiting> {
        self.lines.entry(waiting.kind.clone()).or_default()
    }

    /// Everybody into the line that it belongs to now, in the order in which they asked.
    pub fn regroup(&mut self, requirements: &Requirements) {
        let mut all: Vec<Waiting> = std::mem::take(&mut self.lines).into_values().flatten().collect();
        all.sort_by_key(|waiting| waiting.ticket);
        for mut waiting in all {
            waiting.session.judge(requirements);
            waiting.kind = waiting.session.kind();
            self.line(&waiting).push_back(waiting);
        }
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
        self.lines
            .values()
            .filter_map(VecDeque::front)
            .any(|first| first.session.selection().controllers.contains(controller))
    }

    /// Takes out the first for whom there is something, those with free cores first, and says what. It stays marked, to be put
    /// back or to leave. With
    /// `for_idle_ones`, there may be something for those who hold nothing and not for those before them.
    pub fn next<C>(
        &mut self,
        round: &mut Round,
        for_idle_ones: bool,
        choose: impl Fn(&Session) -> Option<C>,
    ) -> Option<(Waiting, C)> {
        self.lines.retain(|_, line| has_first(line));
        loop {
            let mut best: Option<(bool, u64, usize, Arc<str>)> = None;
            for (kind, line) in &self.lines {
                if round.nothing.contains(kind) {
                    continue;
                }
                let free = round.first_free(kind, line);
                let place = free.unwrap_or_default();
                let Some(first) = line.get(place) else { continue };
                let rank = (free.is_none(), first.ticket);
                if best.as_ref().is_none_or(|(is_busy, ticket, ..)| rank < (*is_busy, *ticket)) {
                    best = Some((rank.0, rank.1, place, kind.clone()));
                }
            }
            let (_, _, place, kind) = best?;
            let line = self.lines.get_mut(&kind)?;
            let first = line.get(place)?;
            if let Some(choice) = choose(&first.session) {
                return Some((line.remove(place)?, choice));
            }
            if for_idle_ones && first.session.holds_unfinished() > 0 {
                let busy = round.busy.get(&kind).copied().unwrap_or_default();
                let begin = line.partition_point(|waiting| waiting.ticket < busy);
                let idles = |waiting: &Waiting| waiting.session.holds_unfinished() == 0 && waiting.session.wants_work();
                let place = line.range(begin..).position(idles).map(|place| begin + place);
                if let Some(place) = place {
                    round.busy.insert(kind.clone(), line[place].ticket);
                    if let Some(choice) = choose(&line[place].session) {
                        return Some((line.remove(place)?, choice));
                    }
                }
            }
            round.nothing.insert(kind.clone());
        }
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
    use pcfarm_proto::ids::CheckoutId;
    use pcfarm_proto::v1;
    use pcfarm_sql::json::RawJson;
    use std::collections::BTreeSet;

    fn session(id: i64, controllers: &[&str]) -> Arc<Session> {
        let controllers = controllers.iter().map(|&name| name.to_owned()).collect();
        session_of(id, &v1::Hello { controllers, cores: 1, ..v1::Hello::default() })
    }

    fn session_of(id: i64, hello: &v1::Hello) -> Arc<Session> {
        Arc::new(Session::that_waits(id, hello))
    }

    fn queue(sessions: &[Arc<Session>]) -> Queue {
        let mut queue = Queue::default();
        sessions.iter().for_each(|session| queue.join(session.clone(), &Requirements::default()));
        queue
    }

    /// A farm that has work for these controllers, from a lane of that name.
    fn with<'a>(work: &'a [&'a str]) -> impl Fn(&Session) -> Option<&'a str> {
        |session| work.iter().find(|&&lane| session.controllers.contains(lane)).copied()
    }

    fn next<'a>(queue: &mut Queue, work: &'a [&'a str]) -> Option<(i64, &'a str)> {
        let (waiting, lane) = queue.next(&mut Round::default(), false, with(work))?;
        Some((waiting.session.workstation_id.0, lane))
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
        queue.join(sessions[0].clone(), &Requirements::default());
        assert!(next(&mut queue, &[]).is_none(), "there is nothing for anybody");
        let order: Vec<i64> = std::iter::from_fn(|| next(&mut queue, &["a"]).map(|(id, _)| id)).collect();
        assert_eq!(order, [2, 3, 4, 5], "who cannot run it holds up nobody");
        assert_eq!(next(&mut queue, &["a", "b"]), Some((1, "b")), "one is left");
        assert_eq!(next(&mut queue, &["a", "b"]), None, "nobody is in it twice");
        assert!(queue.is_empty());
    }

    #[test]
    fn a_line_for_which_there_is_nothing_is_asked_once() {
        let mut queue = queue(&[session(1, &["b"]), session(2, &["a"]), session(3, &["b"])]);
        let (asked, mut round) = (std::cell::Cell::new(0), Round::default());
        let mut next = || {
            queue.next(&mut round, false, |session| {
                asked.set(asked.get() + 1);
                with(&["a"])(session)
            })
        };
        assert_eq!(next().map(|(waiting, _)| waiting.session.workstation_id.0), Some(2));
        assert!(next().is_none());
        assert_eq!(asked.get(), 2, "once of those with b, once of those with a");
        assert!(queue.wants("b") && !queue.wants("a"));
    }

    /// As what needs resources, which is not prefetched.
    #[test]
    fn those_who_hold_something_do_not_stand_before_those_who_hold_nothing() {
        let sessions = [1, 2, 3, 4].map(|id| session(id, &["a"]));
        let mut queue = queue(&sessions);
        for busy in &sessions[..2] {
            busy.sending(CheckoutId(7), "a");
        }
        let for_idle = |session: &Session| (session.holds() == 0).then_some(());
        assert!(queue.next(&mut Round::default(), false, for_idle).is_none());
        let mut round = Round::default();
        for again in 0..2 {
            let (waiting, ()) = queue.next(&mut round, true, for_idle).expect("the third holds nothing");
            assert_eq!(waiting.session.workstation_id.0, 3, "who was put back is found again, {again}");
            queue.put_back(waiting);
        }
        let (third, ()) = queue.next(&mut round, true, for_idle).expect("the third holds nothing");
        let (fourth, ()) = queue.next(&mut round, true, for_idle).expect("nor does the fourth");
        assert_eq!(fourth.session.workstation_id.0, 4);
        assert!(queue.next(&mut round, true, for_idle).is_none() && round.left_somebody());
        queue.put_back(fourth);
        queue.put_back(third);
        let order: Vec<i64> = std::iter::from_fn(|| next(&mut queue, &["a"]).map(|(id, _)| id)).collect();
        assert_eq!(order, [1, 2, 3, 4], "all keep their places");
    }

    #[test]
    fn workstations_with_free_cores_are_served_before_those_that_would_keep_it_for_later() {
        let sessions = [session(1, &["a"]), session(2, &["a", "b"]), session(3, &["a"]), session(4, &["a"])];
        let mut queue = queue(&sessions);
        for (busy, problems) in [(0, 1), (1, 2), (2, 3)] {
            sessions[busy].announce(CheckoutId(7), ("t", "a"), problems, false);
        }
        let mut round = Round::default();
        let mut order: Vec<i64> = Vec::new();
        while let Some((waiting, _)) = queue.next(&mut round, false, with(&["a"])) {
            order.push(waiting.session.workstation_id.0);
        }
        assert_eq!(order, [4, 1, 2, 3], "whatever line they stand in");
        assert!(queue.is_empty() || next(&mut queue, &["a"]).is_none());
    }

    #[test]
    fn who_is_put_back_keeps_its_place_and_who_changed_its_mind_leaves() {
        let sessions = [session(1, &["a"]), session(2, &["a"]), session(3, &["a"])];
        let mut queue = queue(&sessions);
        let (first, _) = queue.next(&mut Round::default(), false, with(&["a"])).expect("all wait");
        queue.put_back(first);
        sessions[1].set_suspended(true);
        let (first, _) = queue.next(&mut Round::default(), false, with(&["a"])).expect("two wait");
        assert_eq!(first.session.workstation_id.0, 1);
        queue.put_last(first.session, &Requirements::default());
        assert_eq!(next(&mut queue, &["a"]), Some((3, "a")));
        assert_eq!(next(&mut queue, &["a"]), Some((1, "a")));
        assert_eq!(next(&mut queue, &["a"]), None);
        sessions[1].set_suspended(false);
        queue.join(sessions[1].clone(), &Requirements::default());
        assert_eq!(next(&mut queue, &["a"]), Some((2, "a")), "it may ask again");
    }

    #[test]
    fn who_was_served_by_somebody_else_stands_behind_those_who_wait() {
        let sessions = [session(1, &["a"]), session(2, &["a"]), session(3, &["b"])];
        sessions[0].add_credit(1);
        let mut queue = queue(&sessions);
        let firsts = |queue: &Queue| queue.first_idle().iter().map(|first| first.workstation_id.0).collect::<Vec<_>>();
        assert_eq!(firsts(&queue), [1, 3], "one of each line");
        assert!(sessions[0].claim() && !sessions[0].claim(), "by one");
        sessions[0].end_claim(true);
        for _ in 0..2 {
            queue.move_last(sessions[0].clone(), &Requirements::default());
        }
        assert_eq!(firsts(&queue), [2, 3]);
        assert!(sessions[0].claim(), "it had asked for two");
        assert_eq!(next(&mut queue, &["a"]), Some((2, "a")));
        assert_eq!(next(&mut queue, &["a"]), None, "who is claimed is given nothing else");
        sessions[0].end_claim(false);
        queue.join(sessions[0].clone(), &Requirements::default());
        assert_eq!(next(&mut queue, &["a"]), Some((1, "a")));
        sessions[0].sending(CheckoutId(1), "a");
        assert!(sessions[0].wants_work() && !sessions[0].claim(), "it holds something");
        queue.put_last(sessions[0].clone(), &Requirements::default());
        sessions[1].leave_queue();
        queue.join(sessions[1].clone(), &Requirements::default());
        assert_eq!(firsts(&queue), [3, 2], "behind one that holds something");
    }

    #[test]
    fn who_may_take_something_else_stands_in_another_line() {
        let sessions = [session(1, &["a"]), session(2, &["a"])];
        let mut queue = queue(&sessions);
        let for_ann = |session: &Session| session.selection().required.contains("ann").then_some(());
        assert!(sessions[1].select(Some(&RawJson(r#"{"required": ["ann"]}"#.into()))));
        assert!(!sessions[1].select(Some(&RawJson(r#"{"required": ["ann"]}"#.into()))), "it is the same");
        queue.regroup(&Requirements::default());
        let (waiting, ()) = queue.next(&mut Round::default(), false, for_ann).expect("nobody stands before it");
        assert_eq!(waiting.session.workstation_id.0, 2);
        queue.put_back(waiting);
        assert!(sessions[1].select(None));
        queue.regroup(&Requirements::default());
        assert_eq!(next(&mut queue, &["a"]), Some((1, "a")), "in the order in which they asked");
    }

    #[test]
    fn who_has_enough_of_one_kind_is_given_others() {
        let hello = v1::Hello {
            controllers: vec!["a".to_owned(), "b".to_owned()],
            cores: 1,
            apart: vec!["b".to_owned()],
            ..v1::Hello::default()
        };
        let session = session_of(1, &hello);
        let other = session_of(2, &hello);
        let mut queue = queue(&[session.clone(), other.clone()]);
        let selected = |work: &'static str| {
            move |session: &Session| session.selection().controllers.contains(work).then_some(work)
        };
        assert!(session.pause(BTreeSet::from(["b".to_owned()])) && !session.pause(BTreeSet::from(["b".to_owned()])));
        queue.regroup(&Requirements::default());
        let (waiting, _) = queue.next(&mut Round::default(), false, selected("b")).expect("the other has room for it");
        assert_eq!(waiting.session.workstation_id.0, 2);
        let (waiting, _) = queue.next(&mut Round::default(), false, selected("a")).expect("it has room for others");
        assert_eq!(waiting.session.workstation_id.0, 1);
        // An administrator's word changes nothing about that.
        assert!(session.select(Some(&RawJson(r#"{"required": ["ann"]}"#.into()))));
        assert!(!session.selection().controllers.contains("b"));
        assert!(session.pause(BTreeSet::new()) && session.selection().required.contains("ann"));

        // What is held is counted by what it waits for.
        session.sending(CheckoutId(1), "b");
        session.sending(CheckoutId(2), "a");
        session.sending(CheckoutId(3), "c");
        assert_eq!((session.holds_beside("b"), session.holds_beside("a"), session.holds()), (1, 2, 3));
        session.forget(CheckoutId(1));
        assert_eq!((session.holds_beside("b"), session.holds_beside("a"), session.holds()), (0, 2, 2));
    }

    #[test]
    fn what_a_workstation_may_be_given_follows_its_equipment() {
        let hello = v1::Hello { controllers: vec!["a".to_owned()], cores: 1, ..v1::Hello::default() };
        let session = session_of(1, &hello);
        let gpu = v1::Gpu { vendor: "nvidia".to_owned(), name: "A100".to_owned() };
        let program = |name: &str| v1::Program { name: name.to_owned(), version: "2.8".to_owned() };
        let with = |gpus: &[v1::Gpu], programs: &[&str]| v1::Equipment {
            gpus: gpus.to_vec(),
            programs: programs.iter().map(|name| program(name)).collect(),
        };
        assert!(!session.equip(&with(&[], &[])), "as before");
        assert!(session.equip(&with(std::slice::from_ref(&gpu), &["minizinc"])));
        assert!(!session.equip(&with(std::slice::from_ref(&gpu), &["minizinc"])));
        assert!(session.equip(&with(&[gpu], &[])));
        // An administrator's word stays.
        assert!(session.select(Some(&RawJson(r#"{"required": ["ann"]}"#.into()))));
        assert!(session.equip(&with(&[], &[])) && session.selection().required.contains("ann"));
        let words = (0..100).filter(|_| session.may_equip()).count();
        assert!((10..20).contains(&words), "{words} words about equipment at once");
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
        assert_eq!(next(&mut queue, &["a"]), Some((1, "a")));
        assert_eq!(next(&mut queue, &["a"]), Some((3, "a")));
        assert_eq!(next(&mut queue, &["a"]), None);
    }
}
