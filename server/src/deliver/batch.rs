//! Deliveries of one job type, gathered into one acceptance. Pure.

use crate::farm::Held;
use crate::problem;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::ids::{CheckoutId, ProblemId};
use pcfarm_proto::v1;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_sql::checkout::{Acceptance, Accepting, Failed, Home, Solved};
use pcfarm_sql::json::RawJson;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most of a failure's message that is kept.
const MESSAGE_LIMIT: usize = 4096;

/// Most of one delivery.
const BUSY_LIMIT: Duration = Duration::from_secs(86_400_000);

#[derive(Debug, Default)]
pub(super) struct Batch {
    checkouts: BTreeMap<CheckoutId, Gathered>,
    brings_more: bool,
}

#[derive(Debug, Default)]
struct Gathered {
    token: i64,
    /// Of its problems, those that have a result here.
    seen: Vec<bool>,
    solved: Vec<Solved>,
    failed: Vec<Failed>,
    /// Results for problems that are not of this checkout.
    strangers: i32,
    /// Problems that its agent returns unbegun, and the reason.
    returned: Vec<ProblemId>,
    why: String,
    /// The agent is done with it, and why it gives back what is left.
    finished: Option<String>,
    busy: Duration,
}

impl Batch {
    pub(super) fn add(&mut self, id: CheckoutId, held: &Held, results: &v1::CheckoutResults, writes_back: bool) {
        let gathered = self.checkouts.entry(id).or_default();
        gathered.token = held.token;
        gathered.seen.resize(held.members.len(), false);
        gathered.solved.reserve(results.results.len());
        for result in &results.results {
            let problem_id = ProblemId(result.problem_id);
            let Some(place) = held.members.find(problem_id) else {
                if planted(Bug::AcceptsStrangers)
                    && let Some(Outcome::Solution(solution)) = &result.outcome
                {
                    let solution = RawJson(solution.clone());
                    gathered.solved.push(Solved {
                        checkout: 0,
                        problem_id,
                        attempts: 0,
                        solution,
                        home: None,
                        more: None,
                    });
                    continue;
                }
                gathered.strangers += 1;
                continue;
            };
            // A delivery that is repeated, or says two things: the first counts.
            if std::mem::replace(&mut gathered.seen[place.index()], true) {
                continue;
            }
            let attempts = held.members.attempts(place);
            let message = match &result.outcome {
                Some(Outcome::Solution(solution)) if solution.len() <= pcfarm_proto::SOLUTION_BYTES_LIMIT => {
                    match more_of(id, result) {
                        Ok(more) => {
                            self.brings_more |= more.is_some();
                            let home = writes_back || more.is_some();
                            let home = home.then(|| Box::new(held.members.home(place)));
                            let solution = RawJson(solution.clone());
                            gathered.solved.push(Solved { checkout: 0, problem_id, attempts, solution, home, more });
                            continue;
                        }
                        Err(wrong) => wrong,
                    }
                }
                Some(Outcome::Solution(solution)) => too_large(solution.len()),
                Some(Outcome::Failure(message)) => message.clone(),
                Some(Outcome::Streamed(_) | Outcome::StreamedResult(_)) | None => {
                    "the agent sent neither a solution nor a failure".to_owned()
                }
            };
            gathered.failed.push(failed(0, problem_id, attempts, held.members.home(place), &message));
        }
        // What an agent says; no more than would fit a day of a thousand cores, so that a sum stays a sum.
        let busy = results.busy.and_then(|busy| Duration::try_from(busy).ok()).unwrap_or_default();
        gathered.busy = gathered.busy.saturating_add(busy.min(BUSY_LIMIT)).min(BUSY_LIMIT);
        if !results.given_back.is_empty() {
            let own = results.given_back.iter().copied().map(ProblemId).filter(|id| held.members.find(*id).is_some());
            // All of them: the agent computes none. It may name each problem once.
            gathered.returned.extend(own.take(held.members.len()));
            gathered.why = storable(&results.give_back_reason);
        }
        if results.finished {
            gathered.finished = Some(storable(&results.give_back_reason));
        }
    }

    /// Cuts it into transactions of at most about so many results; what is left here is who is finished. A checkout that
    /// its agent is done with is closed there, if all its problems have results.
    pub(super) fn acceptances(&mut self, results_each: usize) -> Vec<Acceptance> {
        let mut acceptances: Vec<Acceptance> = Vec::new();
        for (&checkout_id, gathered) in &mut self.checkouts {
            let results = gathered.solved.len() + gathered.failed.len();
            let has_room = |a: &Acceptance| a.solved.len() + a.failed.len() + results <= results_each;
            if !acceptances.last().is_some_and(has_room) {
                acceptances.push(Acceptance::default());
            }
            let acceptance = acceptances.last_mut().expect("just pushed");
            let checkout = acceptance.checkouts.len();
            let closing = gathered.finished.is_some();
            let busy_seconds = std::mem::take(&mut gathered.busy).as_secs_f64();
            // While it is in the processor's caches. Checkouts of one lane are in the order of their problems.
            in_order(&mut gathered.solved);
            acceptance.checkouts.push(Accepting { checkout_id, token: gathered.token, closing, busy_seconds });
            acceptance.solved.extend(gathered.solved.drain(..).map(|solved| Solved { checkout, ..solved }));
            acceptance.failed.extend(gathered.failed.drain(..).map(|failed| Failed { checkout, ..failed }));
        }
        for acceptance in &mut acceptances {
            in_order(&mut acceptance.solved);
            acceptance.failed.sort_unstable_by_key(|failed| failed.problem_id);
        }
        acceptances
    }

    /// Does any of its solutions?
    pub(super) fn brings_more(&self) -> bool {
        self.brings_more
    }

    pub(super) fn token(&self, id: CheckoutId) -> i64 {
        self.checkouts.get(&id).map_or(0, |gathered| gathered.token)
    }

    pub(super) fn refused(&self, id: CheckoutId) -> i32 {
        self.checkouts.get(&id).map_or(0, |gathered| gathered.strangers)
    }

    /// Token of a checkout of which problems come back while it goes on, these problems, and the reason.
    pub(super) fn returned(&self, id: CheckoutId) -> Option<(i64, &[ProblemId], &str)> {
        let gathered = self.checkouts.get(&id).filter(|gathered| !gathered.returned.is_empty())?;
        Some((gathered.token, &gathered.returned, &gathered.why))
    }

    pub(super) fn finished(&self, id: CheckoutId) -> Option<&str> {
        self.checkouts.get(&id)?.finished.as_deref()
    }
}

/// Cores finish out of order; in order, an index grows at its end and locks are taken alike. What one core has solved is in
/// order, which a stable sort makes use of.
fn in_order(solved: &mut [Solved]) {
    if !solved.is_sorted_by_key(|solved| solved.problem_id) {
        solved.sort_by_key(|solved| solved.problem_id);
    }
}

fn more_of(id: CheckoutId, result: &v1::ProblemResult) -> Result<Option<Box<RawJson>>, String> {
    let Some(more) = &result.more else { return Ok(None) };
    let brought = problem::brought(id.0, result.problem_id, more)?;
    Ok(Some(Box::new(RawJson(brought.into()))))
}

/// Makes failures of the solutions that this says something against.
pub(super) fn refuse(
    acceptance: &mut Acceptance,
    home: impl Fn(CheckoutId, ProblemId) -> Option<Home>,
    objection: impl Fn(&Solved) -> Option<String>,
) -> usize {
    let mut refused = 0;
    for solved in std::mem::take(&mut acceptance.solved) {
        let message = objection(&solved);
        let place =
            message.as_ref().and_then(|_| home(acceptance.checkouts[solved.checkout].checkout_id, solved.problem_id));
        match (message, place) {
            (Some(message), Some(home)) => {
                refused += 1;
                acceptance.failed.push(failed(solved.checkout, solved.problem_id, solved.attempts, home, &message));
            }
            _ => acceptance.solved.push(solved),
        }
    }
    refused
}

/// What a solution lacks to be a JSON value.
pub(super) fn not_json(solved: &Solved) -> Option<String> {
    let error = serde_json::from_slice::<serde::de::IgnoredAny>(&solved.solution.0).err()?;
    Some(format!("the solution is not JSON: {error}"))
}

fn failed(checkout: usize, problem_id: ProblemId, attempts: i32, home: Home, message: &str) -> Failed {
    let Home { lane: home_lane, order: home_order, .. } = home;
    Failed { checkout, problem_id, attempts, home_lane, home_order, message: storable(message) }
}

fn too_large(bytes: usize) -> String {
    format!("the solution has {bytes} bytes; at most {} are allowed", pcfarm_proto::SOLUTION_BYTES_LIMIT)
}

/// PostgreSQL's text holds no NUL, and nobody reads more than this of a message.
fn storable(message: &str) -> String {
    let mut text = message.replace('\0', "\u{fffd}");
    if text.len() > MESSAGE_LIMIT {
        text.truncate(text.floor_char_boundary(MESSAGE_LIMIT));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::{Listed, Members};
    use pcfarm_proto::ids::{BatchOrder, JobId, LaneId, WorkstationId};

    fn held(problems: &[i64], attempts: i32) -> Held {
        let member = |&id: &i64| {
            let problem_id = ProblemId(id);
            (Listed { problem_id, attempts, home_lane: LaneId(1), home_order: BatchOrder(0) }, id.to_string())
        };
        Held {
            token: 7,
            job_id: JobId(1),
            job_type: "t".to_owned(),
            workstation_id: WorkstationId(1),
            members: Members::listed(problems.iter().map(member).collect()),
            trace: None,
        }
    }

    fn solved(problem_id: i64) -> v1::ProblemResult {
        v1::ProblemResult { problem_id, outcome: Some(Outcome::Solution("1".into())), more: None }
    }

    fn failing(problem_id: i64) -> v1::ProblemResult {
        v1::ProblemResult { problem_id, outcome: Some(Outcome::Failure("no\0pe".to_owned())), more: None }
    }

    fn delivery(results: Vec<v1::ProblemResult>, finished: bool) -> v1::CheckoutResults {
        v1::CheckoutResults { checkout_id: 5, results, finished, ..v1::CheckoutResults::default() }
    }

    fn accepted(held: &Held, results: Vec<v1::ProblemResult>, finished: bool) -> Acceptance {
        let mut batch = Batch::default();
        batch.add(CheckoutId(5), held, &delivery(results, finished), true);
        batch.acceptances(1000).remove(0)
    }

    #[test]
    fn all_returned_problems_of_the_checkout_come_back() {
        let held = held(&(0..15_000).collect::<Vec<_>>(), 0);
        let mut batch = Batch::default();
        let given_back = (-1_000_000..15_000).chain(0..1_000_000).collect();
        let give_back_reason = "idle".to_owned();
        let results = v1::CheckoutResults { given_back, give_back_reason, ..delivery(Vec::new(), false) };
        batch.add(CheckoutId(5), &held, &results, false);
        let (_, returned, why) = batch.returned(CheckoutId(5)).expect("some");
        assert_eq!(
            (returned.len(), returned[0], returned[14_999], why),
            (15_000, ProblemId(0), ProblemId(14_999), "idle")
        );
    }

    #[test]
    fn a_checkout_closes_when_its_agent_is_done_with_it() {
        let two = held(&[1, 2], 0);
        let done = accepted(&two, vec![solved(2), solved(1)], true);
        assert!(done.checkouts[0].closing);
        assert_eq!(done.solved.iter().map(|s| s.problem_id.0).collect::<Vec<_>>(), [1, 2], "in order");
        assert_eq!(done.solved[0].home.as_ref().and_then(|home| home.key.as_deref()), Some("1"));
        let not_done = accepted(&two, vec![solved(1), failing(2)], false);
        assert!(!not_done.checkouts[0].closing, "the agent has more to say");
        assert_eq!((not_done.solved.len(), not_done.failed.len()), (1, 1));
        assert_eq!(not_done.failed[0].message, "no\u{fffd}pe");
    }

    #[test]
    fn strangers_are_refused_and_repetitions_count_once() {
        let mut batch = Batch::default();
        batch.add(CheckoutId(5), &held(&[1], 0), &delivery(vec![solved(1), failing(1), solved(9)], true), false);
        assert_eq!(batch.refused(CheckoutId(5)), 1);
        let acceptance = batch.acceptances(1000).remove(0);
        assert_eq!((acceptance.solved.len(), acceptance.failed.len()), (1, 0));
    }

    #[test]
    fn transactions_are_cut_between_checkouts() {
        let mut batch = Batch::default();
        for (id, problems) in [(1, 1..=3), (2, 4..=5), (3, 6..=9)] {
            let problems: Vec<i64> = problems.collect();
            let results = delivery(problems.iter().map(|&n| solved(n)).collect(), true);
            batch.add(CheckoutId(id), &held(&problems, 0), &results, false);
        }
        let cut = batch.acceptances(5);
        let shape: Vec<_> = cut.iter().map(|a| (a.checkouts.len(), a.solved.len())).collect();
        assert_eq!(shape, [(2, 5), (1, 4)]);
        assert_eq!(cut[0].solved.iter().map(|s| s.checkout).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
    }

    #[test]
    fn what_is_not_json_fails_alone() {
        let mut bad = solved(1);
        bad.outcome = Some(Outcome::Solution("{half".into()));
        let mut acceptance = accepted(&held(&[1, 2], 0), vec![bad, solved(2)], true);
        let home = |_, _| Some(Home { lane: LaneId(1), order: BatchOrder(3), key: None });
        assert_eq!(refuse(&mut acceptance, home, not_json), 1);
        assert_eq!(acceptance.solved.len(), 1);
        assert!(acceptance.failed[0].message.contains("not JSON"));
        assert_eq!(acceptance.failed[0].home_order, BatchOrder(3));
    }

    #[test]
    fn messages_can_be_stored() {
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
        assert!(storable(&"é".repeat(5000)).len() <= MESSAGE_LIMIT + 4);
    }

    mod fuzz {
        use super::*;
        use prost::Message;

        /// Each problem of the checkout has one result at most, none has a stranger, and what is accepted can be stored.
        #[test]
        fn a_delivery() {
            let held = held(&[1, 2, 3], 1);
            bolero::check!().for_each(|bytes: &[u8]| {
                let Ok(results) = v1::CheckoutResults::decode(bytes) else { return };
                let mut batch = Batch::default();
                batch.add(CheckoutId(5), &held, &results, true);
                let strangers = batch.refused(CheckoutId(5)) as usize;
                let mut acceptance = batch.acceptances(1000).remove(0);
                let home = |_, _| Some(Home { lane: LaneId(1), order: BatchOrder(3), key: None });
                refuse(&mut acceptance, home, not_json);
                let mut ids: Vec<i64> = acceptance.solved.iter().map(|s| s.problem_id.0).collect();
                ids.extend(acceptance.failed.iter().map(|f| f.problem_id.0));
                ids.sort_unstable();
                assert!(ids.iter().all(|id| (1..=3).contains(id)) && ids.windows(2).all(|pair| pair[0] < pair[1]));
                assert!(ids.len() + strangers <= results.results.len());
                assert!(
                    acceptance.failed.iter().all(|f| !f.message.contains('\0') && f.message.len() <= MESSAGE_LIMIT + 4)
                );
                assert!(
                    acceptance
                        .solved
                        .iter()
                        .all(|s| serde_json::from_slice::<serde::de::IgnoredAny>(&s.solution.0).is_ok())
                );
            });
        }
    }
}
