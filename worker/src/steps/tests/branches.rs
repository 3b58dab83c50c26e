//! Several steps that come next, and how they join.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde::Deserialize;

use super::{Latch, ended, ones, rig, until_empty};
use crate::Agent;
use crate::controller::Problem;
use crate::steps::{Branch, Dependency, Join, Next, Step, StepController, Steps};
use crate::trial::Rig;

/// Squares numbers, each in a branch of its own, some of which fail or panic.
struct Squares {
    arithmetic: Dependency,
    at_once: AtomicUsize,
    most_at_once: Arc<AtomicUsize>,
    hold: Latch,
}

#[derive(Deserialize)]
struct Order {
    rule: String,
    /// 13 fails, 14 panics, 15 waits for the latch; below 0 a branch fans out itself, into so many.
    numbers: Vec<i64>,
}

const SPREAD: Step<Order> = Step::named("spread");
const SQUARE: Step<i64> = Step::named("square");
const SPREAD_AGAIN: Step<i64> = Step::named("spread again");
const SUM: Step<Vec<i64>> = Step::named("sum");
const SUM_PART: Step<Vec<i64>> = Step::named("sum of a part");
const EACH: Step<Vec<Result<i64, String>>> = Step::named("each");
const FIRST: Step<i64> = Step::named("first");
const TEXT: Step<Vec<String>> = Step::named("text");

impl StepController for Squares {
    const NAME: &'static str = "squares";
    type Payload = Order;
    type Solution = serde_json::Value;

    fn steps(&self, steps: &mut Steps<Self>) {
        let spread = steps.first(SPREAD).then(SQUARE).then(SPREAD_AGAIN);
        spread.then(SUM).then(EACH).then(FIRST).then(TEXT).run(Self::spread);
        steps.step(SQUARE).uses(&self.arithmetic).run(Self::square);
        steps
            .step(SPREAD_AGAIN)
            .then(SQUARE)
            .then(SUM_PART)
            .run(|_, _, count| Ok(Next::fan_out((0..-count).map(|n| Branch::new(SQUARE, n)), Join::all(SUM_PART))));
        steps.step(SUM_PART).run(|_, _, parts| Ok(Next::part(parts.iter().sum::<i64>())));
        steps.step(SUM).run(|_, _, parts| Ok(Next::solved(serde_json::json!(parts))));
        steps.step(EACH).run(|_, _, parts| {
            let shown =
                |part: Result<i64, String>| part.map_or_else(|e| serde_json::json!(e), |n| serde_json::json!(n));
            Ok(Next::solved(parts.into_iter().map(shown).collect()))
        });
        steps.step(FIRST).run(|_, _, first| Ok(Next::solved(serde_json::json!(first))));
        steps.step(TEXT).run(|_, _, parts| Ok(Next::solved(serde_json::json!(parts))));
    }
}

impl Squares {
    fn spread(&self, _: &Problem<'_, ()>, order: Order) -> anyhow::Result<Next<serde_json::Value>> {
        let branch = |n: i64| if n < 0 { Branch::new(SPREAD_AGAIN, n) } else { Branch::new(SQUARE, n) };
        let join = match order.rule.as_str() {
            "all" => Join::all(SUM),
            "each" => Join::each(EACH),
            "first" => Join::first(FIRST),
            _ => Join::all(TEXT),
        };
        Ok(Next::fan_out(order.numbers.into_iter().map(branch), join))
    }

    fn square(&self, _: &Problem<'_, ()>, n: i64) -> anyhow::Result<Next<serde_json::Value>> {
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        match n {
            15 => self.hold.pass(),
            _ => std::thread::yield_now(),
        }
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        anyhow::ensure!(n != 13, "unlucky");
        assert!(n != 14, "no fourteen");
        Ok(Next::part(n * n))
    }
}

fn squares(arithmetic: Dependency, cores: usize) -> (Rig, Arc<AtomicUsize>, Latch) {
    let (most, hold) = (Arc::new(AtomicUsize::new(0)), Latch::default());
    let squares =
        Squares { arithmetic, at_once: AtomicUsize::new(0), most_at_once: Arc::clone(&most), hold: hold.clone() };
    (rig(Agent::new().steps(squares), cores), most, hold)
}

#[test]
fn branches_join_by_the_rule() {
    for dependency in [
        Dependency::bounded("arithmetic", 3),
        Dependency::bounded("arithmetic", 1).queue(0),
        Dependency::client("arithmetic"),
    ] {
        let (mut rig, _, _) = squares(dependency, 2);
        for (order, expected) in [
            (r#"{"rule": "all", "numbers": [1, 2, 3]}"#, Ok(serde_json::json!([1, 4, 9]))),
            (r#"{"rule": "all", "numbers": []}"#, Ok(serde_json::json!([]))),
            (r#"{"rule": "all", "numbers": [2, -4, 3]}"#, Ok(serde_json::json!([4, 14, 9]))),
            (r#"{"rule": "all", "numbers": [13]}"#, Err("unlucky")),
            (
                r#"{"rule": "each", "numbers": [1, 13, 14]}"#,
                Ok(serde_json::json!([1, "unlucky", "step square panicked: no fourteen"])),
            ),
            (r#"{"rule": "first", "numbers": [13, 5]}"#, Ok(serde_json::json!(25))),
            (r#"{"rule": "first", "numbers": [13]}"#, Err("unlucky")),
            (r#"{"rule": "first", "numbers": []}"#, Err("there was no branch to wait for")),
            (
                r#"{"rule": "text", "numbers": [1]}"#,
                Err("a branch ended with a part of another type than alloc::string::String, which its join takes"),
            ),
        ] {
            rig.check_out("squares", [order]);
            assert_eq!(rig.next().outcome, expected.map_err(str::to_owned), "{order}");
        }
        until_empty(&rig);
    }
}

#[test]
fn who_is_not_waited_for_any_more_holds_up_nothing() {
    let (mut rig, _, hold) = squares(Dependency::bounded("arithmetic", 2).queue(8), 2);
    // One branch hangs, another one fails or is the first: the problem goes on.
    rig.check_out("squares", [r#"{"rule": "all", "numbers": [15, 13, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}"#]);
    assert_eq!(rig.next().outcome, Err("unlucky".to_owned()));
    rig.check_out("squares", [r#"{"rule": "first", "numbers": [3, 3]}"#]);
    assert_eq!(rig.next().outcome, Ok(serde_json::json!(9)));
    hold.open();
    until_empty(&rig);
}

#[test]
fn a_cancelled_problems_branches_are_dropped() {
    let (mut rig, _, hold) = squares(Dependency::bounded("arithmetic", 2).queue(8), 2);
    let hangs = rig.check_out("squares", [r#"{"rule": "all", "numbers": [15, 15, 15, 15, 15, 15, 15, 15]}"#]);
    hold.until_waiting(2);
    rig.cancel(hangs);
    assert_eq!(rig.pools()[0].queued, 0, "what had not begun never does");
    hold.open();
    until_empty(&rig);
    rig.check_out("squares", [r#"{"rule": "all", "numbers": [3]}"#]);
    let ended = rig.next();
    assert_eq!((ended.checkout, ended.outcome), (1, Ok(serde_json::json!([9]))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn however_many_branches_there_are_the_bounds_hold(
        size in 1usize..4,
        queue in 0usize..4,
        orders in prop::collection::vec((0usize..3, prop::collection::vec(-6i64..15, 0..30)), 1..20),
    ) {
        let (mut rig, most, _) = squares(Dependency::bounded("arithmetic", size).queue(queue), 2);
        let payloads: Vec<String> = orders
            .iter()
            .map(|(rule, numbers)| serde_json::json!({"rule": (["all", "each", "first"][*rule]), "numbers": numbers}).to_string())
            .collect();
        rig.check_out("squares", payloads.iter().map(String::as_str));
        let mut all = ended(&mut rig, orders.len());
        all.sort_by_key(|ended| ended.problem);
        for (ended, (rule, numbers)) in all.iter().zip(&orders) {
            let bad = numbers.iter().filter(|n| **n >= 13).count();
            let fails = match rule { 0 => bad > 0, 1 => false, _ => bad == numbers.len() };
            prop_assert_eq!(ended.outcome.is_err(), fails, "{:?}", &ended.outcome);
        }
        until_empty(&rig);
        let pool = &rig.pools()[0];
        prop_assert!(most.load(Ordering::SeqCst) <= size, "{} at once", most.load(Ordering::SeqCst));
        prop_assert!(pool.most_taken <= size + queue && pool.most_queued <= size + queue, "{pool:?}");
    }
}

#[test]
fn many_problems_with_many_branches_share_one_thread() {
    let (mut rig, most, _) = squares(Dependency::bounded("arithmetic", 1).queue(0), 2);
    let order = serde_json::json!({"rule": "all", "numbers": (0..13).collect::<Vec<_>>()}).to_string();
    rig.check_out("squares", ones(200).map(|_| order.as_str()));
    assert!(ended(&mut rig, 200).iter().all(|ended| ended.outcome.is_ok()));
    assert_eq!(most.load(Ordering::SeqCst), 1);
}
