//! Work in a workstation's hands: how many problems are left, when the last result came, whether it has free cores, and when
//! it may be asked to return problems. Pure: the caller supplies the time.

use crate::dispatch::size::{Ahead, Speed};
use pcfarm_proto::ids::CheckoutId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Shortest and longest time between two requests to one workstation to return problems. It doubles while requests help no other
/// workstation: nothing is returned, or the holder is handed the same again because a limit keeps others from it.
const ASK_PAUSE: Duration = Duration::from_secs(1);
const ASK_PAUSE_LIMIT: Duration = Duration::from_secs(16);

/// Names of job types that are kept although no problem of them is left.
const NAMES_LIMIT: usize = 64;

/// Unfinished checkouts of one workstation.
#[derive(Debug)]
pub struct Holding {
    cores: usize,
    work: HashMap<CheckoutId, Work>,
    /// Problems without a result, for the cores and for pools. Kept up to date and never summed up on demand: a workstation may
    /// hold thousands of checkouts.
    left: usize,
    left_of_pools: usize,
    /// Problems for the cores, by job type. A name is allocated once, and not for each checkout.
    left_by_type: HashMap<Arc<str>, usize>,
    /// Some core has nothing to do. Read without the session's lock: the dispatcher's queue looks at a thousand sessions in a row.
    free: Arc<AtomicBool>,
    /// Last result, or the moment from which all cores were busy.
    progressed: Instant,
    /// From when on some core is free and nothing new has come.
    free_since: Instant,
    /// A core has become free since [`Holding::take_freed`].
    freed: bool,
    ask_from: Instant,
    ask_pause: Duration,
    /// The last look at the workstation for problems to return, and the oldest checkout that it considered: the next look considers
    /// older ones.
    looked_at: Option<Instant>,
    considered_to: Option<CheckoutId>,
    returned: Option<Returned>,
    /// The workstation returned problems and has had no result since: it is given nothing in advance.
    gave_back: bool,
}

/// Problems that the workstation returned last.
#[derive(Debug)]
struct Returned {
    job_type: Arc<str>,
    at: Instant,
    /// The workstation was handed problems of this job type again.
    came_back: bool,
}

#[derive(Debug)]
struct Work {
    job_type: Arc<str>,
    /// Its problems wait for a pool of their own and not for the cores.
    is_apart: bool,
    left: usize,
    since: Instant,
}

impl Holding {
    pub fn new(cores: u32, now: Instant) -> Holding {
        Holding {
            cores: usize::try_from(cores).unwrap_or(usize::MAX),
            work: HashMap::new(),
            left: 0,
            left_of_pools: 0,
            left_by_type: HashMap::new(),
            free: Arc::new(AtomicBool::new(cores > 0)),
            progressed: now,
            free_since: now,
            freed: false,
            ask_from: now,
            ask_pause: ASK_PAUSE,
            looked_at: None,
            considered_to: None,
            returned: None,
            gave_back: false,
        }
    }

    /// Notes the problems of a checkout that is on its way.
    pub fn begins(&mut self, checkout: CheckoutId, job_type: &str, is_apart: bool, problems: usize, now: Instant) {
        self.ends(checkout, now);
        if self.is_free() {
            self.progressed = now;
        }
        self.free_since = now;
        if let Some(returned) = self.returned.as_mut().filter(|returned| &*returned.job_type == job_type) {
            returned.came_back = true;
        }
        let job_type = self.named(job_type);
        let work = Work { job_type: job_type.clone(), is_apart, left: problems, since: now };
        self.work.insert(checkout, work);
        if is_apart {
            self.left_of_pools += problems;
            return;
        }
        self.left += problems;
        *self.left_by_type.entry(job_type).or_default() += problems;
        self.show_free();
    }

    fn named(&mut self, job_type: &str) -> Arc<str> {
        if let Some((name, _)) = self.left_by_type.get_key_value(job_type) {
            return name.clone();
        }
        if self.left_by_type.len() >= NAMES_LIMIT {
            self.left_by_type.retain(|_, left| *left > 0);
        }
        let name: Arc<str> = job_type.into();
        self.left_by_type.insert(name.clone(), 0);
        name
    }

    fn show_free(&self) {
        self.free.store(self.is_free(), Ordering::Relaxed);
    }

    /// Becomes true when some core has nothing to do, and false when none is free.
    pub fn free(&self) -> Arc<AtomicBool> {
        self.free.clone()
    }

    /// Notes results of some problems.
    pub fn progresses(&mut self, checkout: CheckoutId, problems: usize, now: Instant) {
        if problems > 0 {
            self.progressed = now;
            self.gave_back = false;
        }
        self.lessen(checkout, problems, now);
    }

    /// Notes returned problems. For a checkout that was returned as a whole, [`Holding::ends`] follows.
    pub fn returns(&mut self, checkout: CheckoutId, problems: usize, now: Instant) {
        self.gave_back = true;
        if let Some(work) = self.work.get(&checkout) {
            self.returned = Some(Returned { job_type: work.job_type.clone(), at: now, came_back: false });
        }
        self.lessen(checkout, problems, now);
    }

    /// Forgets a checkout that is over.
    pub fn ends(&mut self, checkout: CheckoutId, now: Instant) {
        self.lessen(checkout, usize::MAX, now);
        self.work.remove(&checkout);
        self.gave_back &= !self.work.is_empty();
    }

    fn lessen(&mut self, checkout: CheckoutId, problems: usize, now: Instant) {
        let was_busy = !self.is_free();
        let Some(work) = self.work.get_mut(&checkout) else { return };
        let fewer = problems.min(work.left);
        work.left -= fewer;
        if work.is_apart {
            self.left_of_pools -= fewer;
            return;
        }
        self.left -= fewer;
        if let Some(left) = self.left_by_type.get_mut(&work.job_type) {
            *left -= fewer;
        }
        self.show_free();
        if was_busy && self.is_free() {
            (self.free_since, self.freed) = (now, true);
        }
    }

    /// Notes that the workstation has begun or ended a pause. Earlier requests in vain say nothing about its spare problems now.
    pub fn pauses_or_resumes(&mut self, now: Instant) {
        self.free_since = now;
        (self.ask_from, self.ask_pause) = (now, ASK_PAUSE);
    }

    /// Returns true if a core has become free since the last call.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// True if some core has nothing to do.
    pub fn is_free(&self) -> bool {
        self.left < self.cores
    }

    pub fn is_free_for(&self, time: Duration, now: Instant) -> bool {
        self.is_free() && now >= self.free_since + time
    }

    /// Work of the cores before they begin something new.
    pub fn ahead(&self, speed: impl Fn(&str) -> Option<Speed>, now: Instant) -> Ahead {
        let problems = self.left;
        let takes =
            self.left_by_type.iter().filter(|(_, left)| **left > 0).try_fold(0.0, |seconds, (job_type, left)| {
                let speed = speed(job_type)?;
                Some(seconds + *left as f64 / speed.problems_per_second)
            });
        let silent =
            if problems >= self.cores { now.saturating_duration_since(self.progressed) } else { Duration::ZERO };
        let takes = takes.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Ahead { problems, takes: takes.map(|takes| takes.max(silent)), gave_back: self.gave_back }
    }

    /// Returns checkouts that have been here for `time` and may have unbegun problems, `most` at most, and the number of problems
    /// beyond those that the cores compute. A workstation begins its newest checkouts last, so these come first; each look considers
    /// older ones than the look before, so that checkouts which no other workstation may take hide no others. `begins`: false if
    /// the workstation begins no problem, so that it can spare all that have not begun. None: there is nothing to spare, or the last
    /// request was a moment ago.
    pub fn surplus(
        &self,
        begins: bool,
        (time, most): (Duration, usize),
        now: Instant,
    ) -> Option<(Vec<CheckoutId>, usize)> {
        let begun = if begins { self.cores } else { 0 };
        let surplus = self.left.saturating_sub(begun).saturating_add(self.left_of_pools);
        if surplus == 0 || !(now >= self.ask_from || self.has_helped(now)) {
            return None;
        }
        let is_settled = |work: &Work| work.left > 0 && now >= work.since + time;
        let mut checkouts: Vec<CheckoutId> =
            self.work.iter().filter(|(_, work)| is_settled(work)).map(|(id, _)| *id).collect();
        checkouts.sort_unstable();
        let not_considered = checkouts.partition_point(|id| self.considered_to.is_none_or(|to| *id < to));
        if not_considered > 0 {
            checkouts.truncate(not_considered);
        }
        checkouts.drain(..checkouts.len().saturating_sub(most));
        (!checkouts.is_empty()).then_some((checkouts, surplus))
    }

    /// True if another workstation took what this one returned, as far as this can be told.
    fn has_helped(&self, now: Instant) -> bool {
        self.returned.as_ref().is_some_and(|returned| !returned.came_back && now >= returned.at + ASK_PAUSE)
    }

    /// Time of the last look for problems to return.
    pub fn looked_at(&self) -> Option<Instant> {
        self.looked_at
    }

    /// Notes a look at the checkouts from `oldest` on, which found nothing that an idle workstation could take.
    pub fn looked(&mut self, oldest: Option<CheckoutId>, now: Instant) {
        (self.looked_at, self.considered_to) = (Some(now), oldest);
        self.ask_from = self.ask_from.max(now + ASK_PAUSE);
    }

    /// Notes a request to return problems of the checkouts from `oldest` on.
    pub fn asked(&mut self, oldest: Option<CheckoutId>, now: Instant) {
        if self.has_helped(now) {
            self.ask_pause = ASK_PAUSE;
        }
        self.returned = None;
        (self.looked_at, self.considered_to) = (Some(now), oldest);
        self.ask_from = now + self.ask_pause;
        self.ask_pause = (self.ask_pause * 2).min(ASK_PAUSE_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ALL: (Duration, usize) = (SECOND, usize::MAX);

    fn id(n: i64) -> CheckoutId {
        CheckoutId(n)
    }

    #[test]
    fn cores_are_free_while_fewer_problems_than_cores_are_left() {
        let now = Instant::now();
        let mut holding = Holding::new(2, now);
        assert!(holding.is_free_for(SECOND, now + SECOND));
        holding.begins(id(1), "t", false, 1, now + SECOND);
        assert!(holding.is_free() && !holding.is_free_for(SECOND, now + SECOND), "something has just come");
        holding.begins(id(2), "t", false, 3, now + SECOND);
        assert!(!holding.is_free());
        holding.progresses(id(2), 2, now + 2 * SECOND);
        assert!(!holding.is_free() && !holding.take_freed(), "two are left for two cores");
        holding.ends(id(1), now + 3 * SECOND);
        assert!(holding.take_freed() && !holding.take_freed());
        assert!(!holding.is_free_for(SECOND, now + 3 * SECOND) && holding.is_free_for(SECOND, now + 4 * SECOND));
        holding.begins(id(3), "t", true, 9, now + 4 * SECOND);
        assert!(holding.is_free(), "what waits for a pool needs no core");
    }

    #[test]
    fn the_time_ahead_is_known_by_speed_and_by_silence() {
        let now = Instant::now();
        let mut holding = Holding::new(1, now);
        let speed = |job_type: &str| (job_type == "fast").then_some(Speed { problems_per_second: 10.0, problems: 100 });
        assert_eq!(holding.ahead(speed, now).takes, Some(Duration::ZERO));
        holding.begins(id(1), "fast", false, 5, now);
        assert_eq!(holding.ahead(speed, now).takes, Some(SECOND / 2));
        assert_eq!(holding.ahead(speed, now + 9 * SECOND).takes, Some(9 * SECOND), "one of them takes long");
        holding.progresses(id(1), 1, now + 9 * SECOND);
        assert_eq!(holding.ahead(speed, now + 9 * SECOND).takes, Some(Duration::from_millis(400)));
        holding.begins(id(2), "new", false, 1, now + 9 * SECOND);
        assert_eq!(holding.ahead(speed, now + 9 * SECOND).takes, None);
    }

    #[test]
    fn a_workstation_is_asked_for_what_it_has_to_spare_at_growing_intervals() {
        let now = Instant::now();
        let mut holding = Holding::new(2, now);
        holding.begins(id(1), "t", false, 2, now);
        assert_eq!(holding.surplus(true, ALL, now + SECOND), None, "its cores compute both");
        holding.begins(id(2), "t", false, 1, now);
        assert_eq!(holding.surplus(true, ALL, now), None, "it may still be on its way");
        let both = Some((vec![id(1), id(2)], 1));
        let mut at = now + SECOND;
        for pause in [1, 2, 4, 8, 16, 16] {
            assert_eq!(holding.surplus(true, ALL, at), both);
            holding.asked(None, at);
            assert_eq!(holding.surplus(true, ALL, at + Duration::from_millis(pause * 1000 - 1)), None);
            at += Duration::from_secs(pause);
        }
        holding.returns(id(2), 1, at);
        holding.ends(id(2), at);
        assert!(holding.ahead(|_| None, at).gave_back && holding.surplus(true, ALL, at + SECOND).is_none());
        holding.progresses(id(1), 1, at);
        assert!(!holding.ahead(|_| None, at).gave_back, "it has had a result since");
    }

    #[test]
    fn a_workstation_that_begins_nothing_can_spare_all_that_has_not_begun() {
        let now = Instant::now();
        let mut holding = Holding::new(4, now);
        holding.begins(id(1), "t", false, 3, now);
        assert_eq!(holding.surplus(true, ALL, now + SECOND), None, "each core begins one");
        assert_eq!(holding.surplus(false, ALL, now + SECOND), Some((vec![id(1)], 3)));
        holding.asked(None, now + SECOND);
        assert_eq!(holding.surplus(false, ALL, now + SECOND), None, "a moment ago");
        holding.pauses_or_resumes(now + SECOND);
        assert!(holding.surplus(false, ALL, now + SECOND).is_some());
    }

    #[test]
    fn each_look_considers_older_checkouts_than_the_look_before() {
        let now = Instant::now();
        let mut holding = Holding::new(1, now);
        (1..=150).for_each(|checkout| holding.begins(id(checkout), "t", false, 1, now));
        let mut at = now + SECOND;
        for (first, last, asks) in [(87, 150, true), (23, 86, false), (1, 22, true), (87, 150, false)] {
            let (checkouts, _) = holding.surplus(true, (SECOND, 64), at).expect("it has some to spare");
            let expected: Vec<CheckoutId> = (first..=last).map(id).collect();
            assert_eq!(checkouts, expected);
            match asks {
                true => holding.asked(checkouts.first().copied(), at),
                false => holding.looked(checkouts.first().copied(), at),
            }
            at += ASK_PAUSE_LIMIT;
        }
    }

    #[test]
    fn the_interval_grows_while_returned_problems_come_back() {
        let mut at = Instant::now();
        let mut holding = Holding::new(1, at);
        holding.begins(id(0), "t", false, 1, at);
        let mut next = 1;
        let mut round = |holding: &mut Holding, at: Instant, comes_back: bool| {
            holding.begins(id(next), if comes_back { "t" } else { "u" }, false, 9, at);
            let returned = id(next);
            next += 1;
            let asked =
                (0..100).map(|second| at + second * SECOND).find(|at| holding.surplus(true, ALL, *at).is_some());
            let asked = asked.expect("it is asked again");
            holding.asked(None, asked);
            holding.returns(returned, 9, asked);
            holding.ends(returned, asked);
            asked
        };
        at = round(&mut holding, at, true);
        for pause in [1, 2, 4, 8, 16, 16] {
            let asked = round(&mut holding, at, true);
            assert_eq!(asked.saturating_duration_since(at), Duration::from_secs(pause), "a limit keeps others from it");
            at = asked;
        }
        // Something else comes: another workstation took what was returned.
        for _ in 0..3 {
            let asked = round(&mut holding, at, false);
            assert_eq!(asked.saturating_duration_since(at), SECOND);
            at = asked;
            holding.returned.as_mut().expect("it returned").job_type = "t".into();
        }
    }
}
