//! Deliveries of one job type, gathered into one acceptance. Pure.

use super::checked_solution;
use crate::farm::Held;
use pcfarm_proto::ids::{CheckoutId, ProblemId};
use pcfarm_proto::v1;
use pcfarm_sql::checkout::{Acceptance, Outcome};
use std::collections::{BTreeMap, HashSet};

/// Most of a failure's message that is kept.
const MESSAGE_LIMIT: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Batch {
    checkouts: BTreeMap<CheckoutId, Gathered>,
}

#[derive(Debug, Default)]
struct Gathered {
    token: i64,
    problems: usize,
    outcomes: Vec<Outcome>,
    seen: HashSet<ProblemId>,
    /// Results for problems that are not of this checkout.
    strangers: i32,
    /// The agent is done with it, and why it gives back what is left.
    finished: Option<String>,
}

impl Batch {
    pub(super) fn add(&mut self, id: CheckoutId, held: &Held, results: &v1::CheckoutResults, max_attempts: i32) {
        let gathered = self.checkouts.entry(id).or_default();
        gathered.token = held.token;
        gathered.problems = held.members.len();
        for result in &results.results {
            let problem_id = ProblemId(result.problem_id);
            let Some(member) = held.members.get(&problem_id) else {
                gathered.strangers += 1;
                continue;
            };
            // A delivery that is repeated, or says two things: the first counts.
            if !gathered.seen.insert(problem_id) {
                continue;
            }
            let solution = match &result.outcome {
                Some(v1::problem_result::Outcome::Solution(solution)) => checked_solution(solution),
                Some(v1::problem_result::Outcome::Failure(message)) => Err(message.clone()),
                None => Err("the agent sent neither a solution nor a failure".to_owned()),
            };
            gathered.outcomes.push(Outcome {
                checkout: 0,
                problem_id,
                key: member.key.clone(),
                attempts: member.attempts,
                last_attempt: member.attempts + 1 >= max_attempts,
                home_lane: member.home_lane,
                home_order: member.home_order,
                solution: solution.map_err(|message| storable(&message)),
            });
        }
        if results.finished {
            gathered.finished = Some(storable(&results.give_back_reason));
        }
    }

    /// One transaction's worth. A checkout that its agent is done with is closed there, if all its problems have results.
    pub(super) fn acceptance(&self) -> Acceptance {
        let mut acceptance = Acceptance::default();
        for (position, (&id, gathered)) in self.checkouts.iter().enumerate() {
            acceptance.checkouts.push((id, gathered.token, gathered.finished.is_some()));
            acceptance.outcomes.extend(gathered.outcomes.iter().map(|o| Outcome { checkout: position, ..o.clone() }));
        }
        acceptance
    }

    pub(super) fn refused(&self, id: CheckoutId) -> i32 {
        self.checkouts.get(&id).map_or(0, |gathered| gathered.strangers)
    }

    pub(super) fn finished(&self, id: CheckoutId) -> Option<&str> {
        self.checkouts.get(&id)?.finished.as_deref()
    }
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
    use crate::farm::Member;
    use pcfarm_proto::ids::{BatchOrder, JobId, LaneId, WorkstationId};

    fn held(problems: &[i64], attempts: i32) -> Held {
        let member =
            |id: &i64| Member { attempts, home_lane: LaneId(1), home_order: BatchOrder(0), key: id.to_string() };
        Held {
            token: 7,
            job_id: JobId(1),
            job_type: "t".to_owned(),
            workstation_id: WorkstationId(1),
            members: problems.iter().map(|id| (ProblemId(*id), member(id))).collect(),
        }
    }

    fn solved(problem_id: i64) -> v1::ProblemResult {
        let outcome = Some(v1::problem_result::Outcome::Solution("1".into()));
        v1::ProblemResult { problem_id, outcome }
    }

    fn failed(problem_id: i64) -> v1::ProblemResult {
        let outcome = Some(v1::problem_result::Outcome::Failure("no\0pe".to_owned()));
        v1::ProblemResult { problem_id, outcome }
    }

    fn delivery(results: Vec<v1::ProblemResult>, finished: bool) -> v1::CheckoutResults {
        v1::CheckoutResults { checkout_id: 5, results, finished, ..v1::CheckoutResults::default() }
    }

    fn closing(held: &Held, results: Vec<v1::ProblemResult>, finished: bool) -> (bool, usize) {
        let mut batch = Batch::default();
        batch.add(CheckoutId(5), held, &delivery(results, finished), 3);
        let acceptance = batch.acceptance();
        (acceptance.checkouts[0].2, acceptance.outcomes.len())
    }

    #[test]
    fn a_checkout_closes_when_its_agent_is_done_with_it() {
        let two = held(&[1, 2], 0);
        assert_eq!(closing(&two, vec![solved(1), solved(2)], true), (true, 2));
        assert_eq!(closing(&two, vec![solved(1), failed(2)], false), (false, 2), "the agent has more to say");
    }

    #[test]
    fn a_failure_counts_attempts() {
        let last = |attempts| {
            let mut batch = Batch::default();
            batch.add(CheckoutId(5), &held(&[1], attempts), &delivery(vec![failed(1)], true), 3);
            batch.acceptance().outcomes[0].last_attempt
        };
        assert_eq!([last(0), last(1), last(2)], [false, false, true]);
    }

    #[test]
    fn strangers_are_refused_and_repetitions_count_once() {
        let mut batch = Batch::default();
        batch.add(CheckoutId(5), &held(&[1], 0), &delivery(vec![solved(1), solved(1), solved(9)], true), 3);
        assert_eq!(batch.acceptance().outcomes.len(), 1);
        assert_eq!(batch.refused(CheckoutId(5)), 1);
    }

    #[test]
    fn what_is_not_json_fails_alone() {
        let mut batch = Batch::default();
        let bad =
            v1::ProblemResult { problem_id: 1, outcome: Some(v1::problem_result::Outcome::Solution("{half".into())) };
        batch.add(CheckoutId(5), &held(&[1, 2], 0), &delivery(vec![bad, solved(2)], true), 3);
        let outcomes = batch.acceptance().outcomes;
        assert!(outcomes[0].solution.as_ref().is_err_and(|m| m.contains("not JSON")));
        assert!(outcomes[1].solution.is_ok());
    }

    #[test]
    fn messages_can_be_stored() {
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
        assert!(storable(&"é".repeat(5000)).len() <= MESSAGE_LIMIT + 4);
    }
}
