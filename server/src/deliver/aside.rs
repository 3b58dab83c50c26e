//! Deliveries that something of their own stands in the way of, a lock or an administrator's statement that does not end:
//! kept beside the lines, so that what they wait for is waited for by nobody else.
//!
//! Whatever has to do with the same trouble waits here without being tried in a line, and nothing of it is handed out: its
//! results would fill the hands of workstation after workstation. Of each trouble one that waits is tried from time to time;
//! once one was stored they all go back to the lines. Those that have failed by themselves stay until they are stored or what
//! is wrong with them is found: it may be their own.

use pcfarm_proto::ids::JobId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// A trouble of which nothing waits for so long is taken to be over, as nobody could find out otherwise; each time that it was
/// not, for twice as long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
const FORGOTTEN_AFTER_LIMIT: Duration = Duration::from_secs(640);

/// Whatever comes so long after a trouble was forgotten is another one.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// What many deliveries may have to do with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// Its statement that writes back takes too long.
    JobType(Arc<str>),
    /// Somebody has locked what its results are written to, or that takes too long.
    Job(JobId),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::JobType(name) => write!(f, "job type {name}, whose write-back takes too long"),
            Trouble::Job(id) => write!(f, "job {id}, whose results meet a lock or take too long"),
        }
    }
}

/// What there is of it on this server, for those who hand out.
#[derive(Debug, Default)]
pub struct Troubles {
    now: RwLock<Arc<HashSet<Trouble>>>,
    /// No more can be put aside.
    is_full: AtomicBool,
}

impl Troubles {
    pub fn now(&self) -> Arc<HashSet<Trouble>> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what there was before.
    pub(super) fn set(&self, troubles: HashSet<Trouble>) -> Arc<HashSet<Trouble>> {
        std::mem::replace(&mut *self.now.write().unwrap_or_else(PoisonError::into_inner), Arc::new(troubles))
    }

    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
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

/// Which delivery is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    /// One of those that wait for this to be over.
    Waiting(Trouble),
    /// One that has failed by itself.
    Alone,
}

pub(super) struct Aside<D> {
    queues: HashMap<Trouble, Queue<D>>,
    /// Those that have failed by themselves, and when each is tried again: the next one first.
    alone: VecDeque<(Instant, D)>,
    /// Troubles that were forgotten: when, and after how long.
    past: HashMap<Trouble, (Instant, Duration)>,
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
    /// When any were last seen to wait.
    seen: Instant,
    forgotten_after: Duration,
}

impl<D: Kept> Aside<D> {
    pub fn new() -> Aside<D> {
        Aside {
            queues: HashMap::new(),
            alone: VecDeque::new(),
            past: HashMap::new(),
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
        let has_room = self.has_room();
        let known = about.into_iter().find(|trouble| self.queues.contains_key(trouble));
        let Some(queue) = known.filter(|_| has_room).and_then(|trouble| self.queues.get_mut(&trouble)) else {
            return Some(delivery);
        };
        (self.deliveries, self.bytes) = (self.deliveries + 1, self.bytes + delivery.bytes());
        queue.waiting.push_back(delivery);
        None
    }

    pub fn has_room(&self) -> bool {
        self.bytes < BYTES_LIMIT && self.deliveries < DELIVERIES_LIMIT
    }

    /// Keeps one that was not tried, as another has met this trouble just before.
    pub fn wait(&mut self, delivery: D, trouble: Trouble, now: Instant) {
        (self.deliveries, self.bytes) = (self.deliveries + 1, self.bytes + delivery.bytes());
        self.queue(trouble, now).waiting.push_back(delivery);
    }

    /// Keeps one that was tried by itself; `trouble`: what others may have to do with as well.
    pub fn put(&mut self, delivery: D, trouble: Option<Trouble>, now: Instant) {
        if let Some(trouble) = trouble {
            self.queue(trouble, now).from = now + RETRY;
        }
        (self.deliveries, self.bytes) = (self.deliveries + 1, self.bytes + delivery.bytes());
        self.alone.push_back((now + RETRY, delivery));
        self.tidy(now);
    }

    fn queue(&mut self, trouble: Trouble, now: Instant) -> &mut Queue<D> {
        let again = self.past.get(&trouble).map(|(_, before)| (*before * 2).min(FORGOTTEN_AFTER_LIMIT));
        self.queues.entry(trouble).or_insert_with(|| {
            self.changed = true;
            let forgotten_after = again.unwrap_or(FORGOTTEN_AFTER);
            Queue { waiting: VecDeque::new(), from: now + RETRY, is_tried: false, seen: now, forgotten_after }
        })
    }

    /// Lets go of deliveries that nobody waits for, and of troubles of which none wait.
    fn tidy(&mut self, now: Instant) {
        self.tidied = Some(now);
        self.alone.retain(|(_, delivery)| !delivery.is_over());
        self.past.retain(|_, (forgotten, _)| now < *forgotten + REMEMBERED);
        let past = &mut self.past;
        let before = self.queues.len();
        self.queues.retain(|trouble, queue| {
            queue.waiting.retain(|delivery| !delivery.is_over());
            if queue.is_tried || !queue.waiting.is_empty() {
                queue.seen = now;
            }
            let stays = now < queue.seen + queue.forgotten_after;
            if !stays {
                past.insert(trouble.clone(), (now, queue.forgotten_after));
            }
            stays
        });
        self.changed |= self.queues.len() < before;
        let kept = || self.queues.values().flat_map(|queue| &queue.waiting).chain(self.alone.iter().map(|(_, d)| d));
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
        (self.trying, self.trying_alone) = (self.trying + 1, self.trying_alone + usize::from(tried == Tried::Alone));
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
        Some((delivery, Tried::Waiting(trouble.clone())))
    }

    fn next_alone(&mut self, now: Instant) -> Option<(D, Tried)> {
        if self.trying >= AT_ONCE || self.trying_alone >= ALONE_AT_ONCE {
            return None;
        }
        let (_, delivery) = self.alone.pop_front_if(|(from, _)| *from <= now)?;
        Some((delivery, Tried::Alone))
    }

    /// When [`Aside::next`] is to be asked again, if it is only for the clock.
    pub fn next_from(&self) -> Option<Instant> {
        let has_place = self.trying < AT_ONCE;
        let waiting = self.queues.values().filter(|queue| has_place && !queue.is_tried && !queue.waiting.is_empty());
        let alone = self.alone.front().filter(|_| has_place && self.trying_alone < ALONE_AT_ONCE);
        waiting.map(|queue| queue.from).chain(alone.map(|(from, _)| *from)).chain(self.tidied_next()).min()
    }

    /// A try has come to nothing.
    pub fn failed(&mut self, delivery: D, tried: Tried, now: Instant) {
        self.settled(&tried);
        let trouble = match tried {
            Tried::Waiting(trouble) => Some(trouble),
            Tried::Alone => None,
        };
        self.put(delivery, trouble, now);
    }

    /// A try is over, and says nothing of others.
    pub fn settled(&mut self, tried: &Tried) {
        self.trying -= 1;
        match tried {
            Tried::Alone => self.trying_alone -= 1,
            Tried::Waiting(trouble) => {
                if let Some(queue) = self.queues.get_mut(trouble) {
                    queue.is_tried = false;
                }
            }
        }
    }

    /// A try was a success. Returns those that may go back to the lines.
    pub fn stored(&mut self, tried: &Tried) -> Vec<D> {
        self.settled(tried);
        let Tried::Waiting(trouble) = tried else { return Vec::new() };
        self.past.remove(trouble);
        let queue = self.queues.remove(trouble);
        self.changed |= queue.is_some();
        let back: Vec<D> = queue.into_iter().flat_map(|queue| queue.waiting).collect();
        self.deliveries -= back.len();
        self.bytes -= back.iter().map(D::bytes).sum::<usize>();
        back
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
        assert_eq!((last.name, tried.clone(), aside.stored(&tried).len()), ("a", Tried::Alone, 0));
        assert_eq!((aside.deliveries, aside.bytes, aside.trying, aside.trying_alone), (0, 0, 0, 0));
        assert_eq!(aside.take_news(), Some(HashSet::new()));
    }

    #[test]
    fn a_try_that_says_nothing_leaves_the_others_waiting() {
        let mut now = Instant::now();
        let mut aside = Aside::new();
        aside.put(one("a"), Some(A), now);
        for name in ["b", "c", "d"] {
            aside.wait(one(name), A, now);
        }
        now += RETRY;
        let (_, tried) = aside.next(now).expect("the first");
        aside.settled(&tried);
        let (second, tried) = aside.next(now).expect("the second, at once");
        aside.failed(second, tried, now);
        assert_eq!(aside.next(now).expect("what has failed before").1, Tried::Alone);
        assert!(aside.next(now).is_none(), "the third later");
        now += RETRY;
        assert_eq!(aside.next(now).map(|(third, tried)| (third.name, tried)), Some(("d", Tried::Waiting(A))));
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
        // What has failed by itself says nothing of others: they are let try.
        for seconds in [10, 20, 40] {
            aside.put(Delivery { over: seconds == 40, ..one("d") }, Some(B), now);
            let from = now;
            while !aside.is_quiet() {
                now = aside.next_from().expect("it is looked at again");
                while let Some((delivery, tried)) = aside.next(now) {
                    aside.failed(Delivery { over: true, ..delivery }, tried, now);
                }
            }
            assert_eq!(now - from, Duration::from_secs(seconds));
        }
        assert_eq!(aside.take_news(), Some(HashSet::new()));
        assert_eq!((aside.deliveries, aside.next_from()), (0, None));
    }
}
