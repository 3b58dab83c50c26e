//! Deliveries that something of their own stands in the way of, a lock or an administrator's statement that does not end:
//! kept beside the lines, so that what they wait for is waited for by nobody else.
//!
//! Whatever has to do with the same trouble joins them without being tried in a line, and nothing of it is handed out: its
//! results would fill the hands of workstation after workstation. Of each trouble one of these is tried again from time to
//! time; once one was stored they all go back to the lines, but for those that have failed by themselves: what stands in
//! their way may be their own.

use pcfarm_proto::ids::JobId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::Instant;

/// Tried at a time, each on a connection of its own.
const AT_ONCE: usize = 3;

/// The same of those that have failed by themselves: to find what it is may take many minutes, which others need not wait.
const ALONE_AT_ONCE: usize = 2;

/// Between two tries.
const RETRY: Duration = Duration::from_secs(5);

/// Kept here, beside what the lines bring: what comes when there is as much waits for a line, with all others.
const BYTES_LIMIT: usize = 256 << 20;
const DELIVERIES_LIMIT: usize = 20_000;

/// A trouble of which nothing is kept for so long is taken to be over: nobody can find out. Agents that wait for an answer in
/// vain connect anew, and bring what they have delivered again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// What many deliveries may have to do with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// Its statement that writes back takes too long.
    JobType(Arc<str>),
    /// Somebody has locked it, or what its results are written to.
    Job(JobId),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::JobType(name) => write!(f, "job type {name}, whose write-back takes too long"),
            Trouble::Job(id) => write!(f, "job {id}, which somebody has locked, or something that its results go to"),
        }
    }
}

/// What there is of it on this server, for those who hand out.
#[derive(Debug, Default)]
pub struct Troubles(RwLock<Arc<HashSet<Trouble>>>);

impl Troubles {
    pub fn now(&self) -> Arc<HashSet<Trouble>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what there was before.
    pub(super) fn set(&self, troubles: HashSet<Trouble>) -> Arc<HashSet<Trouble>> {
        std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), Arc::new(troubles))
    }

    /// Are results of this job and job type to be stored before more of it is handed out?
    pub fn concern(&self, job: Option<JobId>, job_type: &Arc<str>) -> bool {
        let troubles = self.now();
        !troubles.is_empty()
            && (troubles.contains(&Trouble::JobType(job_type.clone()))
                || job.is_some_and(|job| troubles.contains(&Trouble::Job(job))))
    }
}

/// What is kept.
pub(super) trait Kept {
    fn bytes(&self) -> usize;

    /// Does nobody wait for its answer any more?
    fn is_over(&self) -> bool;
}

/// What a delivery that is tried has to do with, and whether it has failed by itself before.
#[derive(Debug)]
pub(super) struct Tried {
    trouble: Option<Trouble>,
    alone: bool,
}

pub(super) struct Aside<D> {
    queues: HashMap<Trouble, Queue<D>>,
    /// Those that have failed by themselves, and when each is tried again: the next one first.
    alone: VecDeque<(Instant, D, Option<Trouble>)>,
    deliveries: usize,
    bytes: usize,
    trying: usize,
    trying_alone: usize,
    /// When it was last looked whether anybody waits for what is kept.
    tidied: Option<Instant>,
    /// A trouble has come or gone.
    changed: bool,
}

struct Queue<D> {
    waiting: VecDeque<D>,
    /// When one of them is tried.
    from: Instant,
    is_tried: bool,
    /// When anything of it was last seen to be kept.
    seen: Instant,
}

impl<D: Kept> Aside<D> {
    pub fn new() -> Aside<D> {
        Aside {
            queues: HashMap::new(),
            alone: VecDeque::new(),
            deliveries: 0,
            bytes: 0,
            trying: 0,
            trying_alone: 0,
            tidied: None,
            changed: false,
        }
    }

    /// Is there no trouble that a delivery could have to do with?
    pub fn is_quiet(&self) -> bool {
        self.queues.is_empty()
    }

    /// What there is, if that is something else than when this was asked last.
    pub fn take_news(&mut self) -> Option<HashSet<Trouble>> {
        std::mem::take(&mut self.changed).then(|| self.queues.keys().cloned().collect())
    }

    /// Keeps a delivery that has just come, if anything that it is about is in trouble. Returns one of which nothing is, or
    /// that there is no room for.
    pub fn keep(&mut self, delivery: D, about: impl IntoIterator<Item = Trouble>) -> Option<D> {
        let has_room = self.bytes < BYTES_LIMIT && self.deliveries < DELIVERIES_LIMIT;
        let known = about.into_iter().find(|trouble| self.queues.contains_key(trouble));
        let Some(queue) = known.filter(|_| has_room).and_then(|trouble| self.queues.get_mut(&trouble)) else {
            return Some(delivery);
        };
        (self.deliveries, self.bytes) = (self.deliveries + 1, self.bytes + delivery.bytes());
        queue.waiting.push_back(delivery);
        None
    }

    /// Keeps one that was not tried, as another has met this trouble just before.
    pub fn wait(&mut self, delivery: D, trouble: Trouble, now: Instant) {
        (self.deliveries, self.bytes) = (self.deliveries + 1, self.bytes + delivery.bytes());
        self.queue(trouble, now).waiting.push_back(delivery);
    }

    /// Keeps one that was tried by itself, in a line or here; `trouble`: what others may have to do with as well.
    pub fn put(&mut self, delivery: D, trouble: Option<Trouble>, now: Instant) {
        let from = now + RETRY;
        if let Some(trouble) = &trouble {
            self.queue(trouble.clone(), now).from = from;
        }
        (self.deliveries, self.bytes) = (self.deliveries + 1, self.bytes + delivery.bytes());
        self.alone.push_back((from, delivery, trouble));
        self.tidy(now);
    }

    fn queue(&mut self, trouble: Trouble, now: Instant) -> &mut Queue<D> {
        self.queues.entry(trouble).or_insert_with(|| {
            self.changed = true;
            Queue { waiting: VecDeque::new(), from: now + RETRY, is_tried: false, seen: now }
        })
    }

    /// Lets go of deliveries that nobody waits for, and of troubles that none is left of.
    fn tidy(&mut self, now: Instant) {
        self.tidied = Some(now);
        self.alone.retain(|(_, delivery, _)| !delivery.is_over());
        let alone: HashSet<&Trouble> = self.alone.iter().filter_map(|(.., trouble)| trouble.as_ref()).collect();
        let before = self.queues.len();
        self.queues.retain(|trouble, queue| {
            queue.waiting.retain(|delivery| !delivery.is_over());
            if queue.is_tried || !queue.waiting.is_empty() || alone.contains(trouble) {
                queue.seen = now;
            }
            now < queue.seen + FORGOTTEN_AFTER
        });
        self.changed |= self.queues.len() < before;
        let kept = || self.queues.values().flat_map(|queue| &queue.waiting).chain(self.alone.iter().map(|(_, d, _)| d));
        (self.deliveries, self.bytes) = (kept().count(), kept().map(D::bytes).sum());
    }

    /// When that is to be looked at again.
    fn tidied_next(&self) -> Option<Instant> {
        let is_empty = self.queues.is_empty() && self.alone.is_empty();
        self.tidied.map(|tidied| tidied + RETRY).filter(|_| !is_empty)
    }

    /// What is to be tried now.
    pub fn next(&mut self, now: Instant) -> Option<(D, Tried)> {
        if self.tidied_next().is_some_and(|from| from <= now) {
            self.tidy(now);
        }
        let (delivery, tried) = self.next_waiting(now).or_else(|| self.next_alone(now))?;
        (self.deliveries, self.bytes) = (self.deliveries - 1, self.bytes - delivery.bytes());
        (self.trying, self.trying_alone) = (self.trying + 1, self.trying_alone + usize::from(tried.alone));
        Some((delivery, tried))
    }

    fn next_waiting(&mut self, now: Instant) -> Option<(D, Tried)> {
        if self.trying >= AT_ONCE {
            return None;
        }
        let due = self.queues.iter_mut().filter(|(_, queue)| queue.is_due(now));
        let (trouble, queue) = due.min_by_key(|(_, queue)| queue.from)?;
        let delivery = queue.waiting.pop_front()?;
        queue.is_tried = true;
        Some((delivery, Tried { trouble: Some(trouble.clone()), alone: false }))
    }

    fn next_alone(&mut self, now: Instant) -> Option<(D, Tried)> {
        if self.trying >= AT_ONCE || self.trying_alone >= ALONE_AT_ONCE {
            return None;
        }
        let (_, delivery, trouble) = self.alone.pop_front_if(|(from, ..)| *from <= now)?;
        Some((delivery, Tried { trouble, alone: true }))
    }

    /// When [`Aside::next`] is to be asked again, if it is only for the clock.
    pub fn next_from(&self) -> Option<Instant> {
        let has_place = self.trying < AT_ONCE;
        let waiting = self.queues.values().filter(|queue| has_place && !queue.is_tried && !queue.waiting.is_empty());
        let alone = self.alone.front().filter(|_| has_place && self.trying_alone < ALONE_AT_ONCE);
        waiting.map(|queue| queue.from).chain(alone.map(|(from, ..)| *from)).chain(self.tidied_next()).min()
    }

    /// A try has come to nothing.
    pub fn failed(&mut self, delivery: D, tried: Tried, now: Instant) {
        self.end(&tried);
        self.put(delivery, tried.trouble, now);
    }

    /// A try was a success, and what it had to do with is no trouble any more. Returns those that may go back to the lines.
    pub fn stored(&mut self, tried: &Tried) -> Vec<D> {
        self.end(tried);
        let queue = tried.trouble.as_ref().and_then(|trouble| self.queues.remove(trouble));
        self.changed |= queue.is_some();
        let back: Vec<D> = queue.into_iter().flat_map(|queue| queue.waiting).collect();
        self.deliveries -= back.len();
        self.bytes -= back.iter().map(D::bytes).sum::<usize>();
        back
    }

    fn end(&mut self, tried: &Tried) {
        (self.trying, self.trying_alone) = (self.trying - 1, self.trying_alone - usize::from(tried.alone));
        if let Some(trouble) = tried.trouble.as_ref().filter(|_| !tried.alone)
            && let Some(queue) = self.queues.get_mut(trouble)
        {
            queue.is_tried = false;
        }
    }
}

impl<D> Queue<D> {
    fn is_due(&self, now: Instant) -> bool {
        !self.is_tried && !self.waiting.is_empty() && self.from <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Delivery {
        name: &'static str,
        bytes: usize,
        over: bool,
    }

    impl Kept for Delivery {
        fn bytes(&self) -> usize {
            self.bytes
        }

        fn is_over(&self) -> bool {
            self.over
        }
    }

    fn one(name: &'static str) -> Delivery {
        Delivery { name, bytes: 10, over: false }
    }

    fn names(deliveries: &[Delivery]) -> String {
        deliveries.iter().map(|delivery| delivery.name).collect()
    }

    const A: Trouble = Trouble::Job(JobId(1));
    const B: Trouble = Trouble::Job(JobId(2));

    #[test]
    fn one_of_each_trouble_is_tried_and_the_others_go_back_when_it_was_stored() {
        let mut now = Instant::now();
        let mut aside = Aside::new();
        assert_eq!(aside.keep(one("x"), [A]), Some(one("x")), "nothing is known of it yet");
        assert_eq!(aside.take_news(), None);
        aside.put(one("a"), Some(A), now);
        assert_eq!(aside.take_news(), Some(HashSet::from([A])));
        aside.wait(one("b"), A, now);
        assert_eq!(aside.keep(one("c"), [B, A]), None);
        assert_eq!(aside.keep(one("d"), [B]), Some(one("d")));
        assert!(aside.next(now).is_none(), "not yet");
        now += RETRY;
        assert_eq!(aside.next_from(), Some(now));
        let (first, tried) = aside.next(now).expect("one that waits");
        let (second, tried_alone) = aside.next(now).expect("the one that has failed");
        assert_eq!((first.name, second.name), ("b", "a"));
        assert!(aside.next(now).is_none(), "one of those that wait is enough");
        aside.failed(second, tried_alone, now);
        now += RETRY;
        assert_eq!(names(&aside.stored(&tried)), "c");
        assert_eq!(aside.keep(one("e"), [A]), Some(one("e")), "it is over");
        let (last, tried) = aside.next(now).expect("what has failed is on its own");
        assert_eq!((last.name, names(&aside.stored(&tried)).as_str()), ("a", ""));
        assert_eq!((aside.deliveries, aside.bytes, aside.trying, aside.trying_alone), (0, 0, 0, 0));
        assert_eq!(aside.take_news(), Some(HashSet::new()));
    }

    #[test]
    fn those_that_have_failed_leave_a_place_to_others() {
        let mut now = Instant::now();
        let mut aside = Aside::new();
        for name in ["a", "b", "c"] {
            aside.put(one(name), Some(A), now);
        }
        now += RETRY;
        let tried: Vec<_> = std::iter::from_fn(|| aside.next(now)).collect();
        assert_eq!(tried.len(), ALONE_AT_ONCE);
        aside.put(one("d"), Some(B), now);
        aside.wait(one("e"), B, now);
        assert!(aside.next(now).is_none());
        now += RETRY;
        assert_eq!(aside.next(now).expect("of another trouble").0.name, "e");
        assert_eq!(aside.next_from(), Some(now + RETRY), "all places are taken");
        for (delivery, tried) in tried {
            aside.failed(delivery, tried, now);
        }
        assert_eq!(aside.next(now).expect("the third").0.name, "c");
    }

    #[test]
    fn what_nobody_waits_for_is_let_go_and_what_is_kept_is_bounded() {
        let mut now = Instant::now();
        let mut aside = Aside::new();
        aside.put(Delivery { over: true, ..one("a") }, Some(A), now);
        assert_eq!((aside.deliveries, aside.bytes), (0, 0));
        assert_eq!(aside.keep(Delivery { bytes: BYTES_LIMIT, ..one("b") }, [A]), None);
        assert_eq!(aside.keep(one("c"), [A]), Some(one("c")), "no room");
        now += RETRY;
        let (_, tried) = aside.next(now).expect("the large one");
        assert_eq!(aside.keep(one("c"), [A]), None, "there is room again");
        assert_eq!(names(&aside.stored(&tried)), "c");
        aside.put(one("d"), Some(B), now);
        now += RETRY;
        let (again, tried) = aside.next(now).expect("it was tried by itself");
        aside.failed(Delivery { over: true, ..again }, tried, now);
        assert_eq!((aside.deliveries, aside.is_quiet()), (0, false));
        drop(aside.take_news());
        while !aside.is_quiet() {
            now = aside.next_from().expect("it is looked at again");
            assert!(aside.next(now).is_none());
        }
        assert_eq!(aside.take_news(), Some(HashSet::new()), "nobody has anything to do with that trouble any more");
        assert_eq!(aside.next_from(), None);
    }
}
