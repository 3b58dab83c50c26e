//! Where the steps of one problem run, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::{ended, rig};
use crate::Agent;
use crate::controller::Problem;
use crate::steps::{Dependency, Next, Step, StepController, Steps, Uses};
use crate::trial::Ended;

const NAMES: [&str; 8] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];

/// Steps one after the other, each of which notes where it runs.
struct Chain {
    /// By step: the pool that it uses, or the cores, or none.
    uses: Vec<Where>,
    pools: Vec<Dependency>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Anywhere,
    Cores,
    Pool(usize),
}

/// Of each step: its thread's name and id.
type Trace = Vec<(String, String)>;

impl StepController for Chain {
    const NAME: &'static str = "chain";
    type Payload = Trace;
    type Solution = Trace;

    fn steps(&self, steps: &mut Steps<Self>) {
        for (index, place) in self.uses.iter().enumerate() {
            let this = Step::named(NAMES[index]);
            let mut step = if index == 0 { steps.first(this) } else { steps.step(this) };
            step = match place {
                Where::Anywhere => step,
                Where::Cores => step.uses(&Dependency::cores()),
                // Through a client, to be found.
                Where::Pool(pool) => step.uses(&Dependency::client(format!("client {pool}")).uses(&self.pools[*pool])),
            };
            let next = (index + 1 < self.uses.len()).then(|| Step::<Trace>::named(NAMES[index + 1]));
            let step = if let Some(next) = next { step.then(next) } else { step };
            step.run(move |_, _: &Problem<'_, ()>, mut trace| {
                let thread = std::thread::current();
                trace.push((thread.name().unwrap_or_default().to_owned(), format!("{:?}", thread.id())));
                Ok(match next {
                    Some(next) => Next::step(next, trace),
                    None => Next::solved(trace),
                })
            });
        }
    }
}

fn trace(ended: &Ended) -> Trace {
    let solution = ended.outcome.clone().expect("a chain is solved");
    serde_json::from_value(solution).expect("a trace")
}

fn is_where_it_belongs(uses: &[Where], trace: &Trace) -> Result<(), TestCaseError> {
    prop_assert_eq!(uses.len(), trace.len());
    for (index, (place, (name, id))) in uses.iter().zip(trace).enumerate() {
        match place {
            Where::Pool(pool) => prop_assert_eq!(name, &format!("pcfarm-p{pool}")),
            Where::Cores => prop_assert!(name.starts_with("pcfarm-core-"), "{}", name),
            Where::Anywhere if index == 0 => prop_assert!(name.starts_with("pcfarm-core-"), "{}", name),
            Where::Anywhere => prop_assert_eq!(id, &trace[index - 1].1),
        }
        // Nor does it change threads where it need not.
        if index > 0 && *place == uses[index - 1] && *place != Where::Anywhere {
            prop_assert_eq!(id, &trace[index - 1].1);
        }
    }
    Ok(())
}

fn places() -> impl Strategy<Value = Where> {
    prop_oneof![3 => Just(Where::Anywhere), 1 => Just(Where::Cores), 3 => (0usize..3).prop_map(Where::Pool)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn each_step_runs_where_it_belongs_and_changes_threads_for_nothing_else(
        uses in prop::collection::vec(places(), 1..8),
        sizes in prop::collection::vec((1usize..4, 0usize..3), 3),
        problems in 1usize..40,
    ) {
        let bounded = |(pool, (size, queue)): (usize, &(usize, usize))| Dependency::bounded(format!("p{pool}"), *size).queue(*queue);
        let pools = sizes.iter().enumerate().map(bounded).collect();
        let mut rig = rig(Agent::new().steps(Chain { uses: uses.clone(), pools }), 2);
        rig.check_out("chain", std::iter::repeat_n("[]", problems));
        for ended in ended(&mut rig, problems) {
            is_where_it_belongs(&uses, &trace(&ended))?;
        }
        for pool in rig.pools() {
            prop_assert!(pool.most_threads <= pool.size && pool.most_taken <= pool.places, "{pool:?}");
            prop_assert!(pool.most_queued <= pool.places, "{pool:?}");
        }
    }
}

#[test]
fn a_chain_without_bottlenecks_never_changes_threads() {
    let mut rig = rig(Agent::new().steps(Chain { uses: vec![Where::Anywhere; 8], pools: Vec::new() }), 3);
    rig.check_out("chain", std::iter::repeat_n("[]", 500));
    for ended in ended(&mut rig, 500) {
        let trace = trace(&ended);
        assert!(trace.iter().all(|place| *place == trace[0]), "{trace:?}");
    }
}

/// Counts down, a step for each number.
struct Countdown;

const DOWN: Step<u64> = Step::named("down");

impl StepController for Countdown {
    const NAME: &'static str = "countdown";
    type Payload = u64;
    type Solution = String;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.first(DOWN).then(DOWN).run(|_, problem, left| {
            Ok(match left {
                0 => Next::solved(problem.key().to_owned()),
                _ => Next::step(DOWN, left - 1),
            })
        });
    }
}

#[test]
fn a_chain_may_be_long() {
    let mut rig = rig(Agent::new().steps(Countdown), 1);
    rig.check_out("countdown", ["2000000"]);
    assert_eq!(rig.next().outcome, Ok(serde_json::json!("0")));
}

/// Fails as its payload says.
struct Bad {
    database: Arc<Database>,
    begun: AtomicUsize,
}

struct Database;

impl Uses for Database {
    fn dependency(&self) -> Dependency {
        Dependency::bounded("database", 1).queue(1)
    }
}

const CHOOSE: Step<String> = Step::named("choose");
const ON: Step<u32> = Step::named("on");

impl StepController for Bad {
    const NAME: &'static str = "bad";
    type Payload = String;
    type Solution = f64;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.first(CHOOSE).uses(&self.database).then(ON).run(Self::choose);
        steps.step(ON).run(|_, _, n| Ok(Next::solved(f64::from(n))));
        steps.step(Step::<u32>::named("apart")).run(|_, _, _| Ok(Next::solved(0.0)));
    }
}

impl Bad {
    fn choose(&self, problem: &Problem<'_, ()>, how: String) -> anyhow::Result<Next<f64>> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        match how.as_str() {
            "panic" => panic!("at problem {}", problem.key()),
            "fail" => Err(anyhow::anyhow!("the cause").context("no luck")),
            "undeclared" => Ok(Next::step(Step::<u32>::named("apart"), 1)),
            "another type" => Ok(Next::step(Step::<u64>::named("on"), 1)),
            "infinite" => Ok(Next::solved(f64::INFINITY)),
            "part" => Ok(Next::part(1)),
            _ => Ok(Next::step(ON, 7)),
        }
    }
}

#[test]
fn whatever_a_step_does_costs_its_problem_alone() {
    let mut rig = rig(Agent::new().steps(Bad { database: Arc::new(Database), begun: AtomicUsize::new(0) }), 1);
    let cases = [
        (r#""panic""#, Err("step choose panicked: at problem 0")),
        (r#""fail""#, Err("no luck: the cause")),
        (r#""undeclared""#, Err("step choose of bad goes on with apart, which it was not declared to be followed by")),
        (r#""another type""#, Err("it was not handed a u32")),
        (r#""infinite""#, Err("the solution cannot be stored: it contains a number that is not finite (inf)")),
        (r#""part""#, Err("it ended with a part, and is no branch")),
        ("3", Err("the payload does not parse: invalid type: integer `3`, expected a string at line 1 column 1")),
        (r#""well""#, Ok(serde_json::json!(7.0))),
    ];
    rig.check_out("bad", cases.iter().map(|(payload, _)| *payload));
    let mut all = ended(&mut rig, cases.len());
    all.sort_by_key(|ended| ended.problem);
    for (ended, (payload, expected)) in all.into_iter().zip(cases) {
        assert_eq!(ended.outcome, expected.map_err(str::to_owned), "{payload}");
    }
    // The one thread that there is works on.
    rig.check_out("bad", [r#""well""#]);
    assert_eq!(rig.next().outcome, Ok(serde_json::json!(7.0)));
    assert_eq!(rig.pools()[0].most_threads, 1);
}
