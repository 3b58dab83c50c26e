//! Which pool a step belongs to, and what is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use crate::agent::AgentError;
use crate::builtin::Echo;
use crate::controller::Problem;
use crate::steps::declare::{Declaration, Declared, Taken};
use crate::steps::wiring::{Place, Plan, pool_bit, wire};
use crate::steps::{Dependency, Next, Step, StepController, Steps};
use crate::trial::Rig;
use crate::{Agent, steps};

fn step(name: &'static str, uses: &[&Dependency], then: &[&'static str]) -> Declared {
    let uses = uses.iter().map(|dependency| (*dependency).clone()).collect();
    Declared {
        name,
        takes: Taken::of::<u32>(),
        uses,
        then: then.iter().map(|name| (*name, Taken::of::<u32>())).collect(),
    }
}

fn declaration(name: &'static str, steps: Vec<Declared>) -> Declaration {
    let first = steps.first().map(|step| step.name);
    Declaration { name, first, in_flight: 10, steps, parse: Arc::new(|_| Ok(Box::new(1_u32))), run: Vec::new() }
}

fn plan(steps: Vec<Declared>) -> Plan {
    wire(&[declaration("c", steps)]).expect("it can work")
}

fn refused(declarations: &[Declaration]) -> String {
    wire(declarations).expect_err("it cannot work").to_string()
}

#[test]
fn a_step_belongs_to_what_it_uses_in_the_end() {
    let database = Dependency::bounded("database", 50);
    let orm = Dependency::client("orm").uses(&database);
    let fares = Dependency::client("fares").uses(&orm);
    let pure = Dependency::client("arithmetic");
    let plan = plan(vec![
        step("read", &[&fares, &pure], &["think"]),
        step("think", &[&pure], &["crunch"]),
        step("crunch", &[&Dependency::cores()], &["write"]),
        step("write", &[&database, &fares], &[]),
    ]);
    let places: Vec<Place> = plan.flows[0].steps.iter().map(|step| step.place).collect();
    assert_eq!(places, [Place::Pool(0), Place::Anywhere, Place::Cores, Place::Pool(0)]);
    assert_eq!(plan.pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["database"]);
    assert!(plan.flows[0].steps.iter().all(|step| step.reach == pool_bit(0)));
    assert_eq!(plan.warnings, [""; 0]);
}

#[test]
fn a_step_that_needs_two_pools_is_named_with_its_ways_there() {
    let database = Dependency::bounded("database", 50);
    let licences = Dependency::bounded("licences", 2);
    let fares = Dependency::client("fares").uses(&database);
    let plan =
        plan(vec![step("price", &[&fares, &licences], &["rest"]), step("rest", &[], &[]), step("lost", &[], &[])]);
    assert_eq!(plan.flows[0].steps[0].place, Place::Pool(1), "where the fewer are");
    assert_eq!(plan.warnings.len(), 2);
    for part in [
        "step price of c needs 2 pools: ",
        "licences (price uses licences)",
        "database (price uses fares uses database)",
        "split it",
    ] {
        assert!(plan.warnings[0].contains(part), "{} / {part}", plan.warnings[0]);
    }
    assert!(plan.warnings[1].contains("step lost of c comes after no other"), "{}", plan.warnings[1]);
}

#[test]
fn places_are_taken_only_for_what_is_still_to_come() {
    let (a, b) = (Dependency::bounded("a", 1), Dependency::bounded("b", 1));
    let plan = plan(vec![
        step("one", &[&a], &["two"]),
        step("two", &[], &["three"]),
        step("three", &[&b], &["two", "four"]),
        step("four", &[], &[]),
    ]);
    let reach: Vec<_> = plan.flows[0].steps.iter().map(|step| step.reach).collect();
    assert_eq!(reach, [pool_bit(0) | pool_bit(1), pool_bit(1), pool_bit(1), 0]);
}

#[test]
fn what_cannot_work_is_refused_all_of_it() {
    let one = |dependency: &Dependency| refused(&[declaration("c", vec![step("s", &[dependency], &[])])]);
    let circle = Dependency::client("a").uses(&Dependency::client("b").uses(&Dependency::client("d").uses_named("a")));
    for (message, expected) in [
        (one(&circle), "use each other in a circle: a uses b uses d uses a"),
        (one(&Dependency::client("a").uses_named("a")), "in a circle: a uses a"),
        (one(&Dependency::bounded("a", 0)), "dependency a can serve nobody: its size is 0"),
        (one(&Dependency::bounded("a", 5).up_to(4)), "may grow to 4, and has 5 already"),
        (one(&Dependency::client("a").uses_named("b")), "b is used by name, and nobody declares it"),
        (one(&Dependency::bounded("cores", 5)), "cores are the agent's own"),
        (one(&Dependency::client("")), "a dependency needs a name"),
        (refused(&[declaration("c", vec![])]), "controller c has no first step"),
        (
            refused(&[declaration("c", vec![step("s", &[], &["t"])])]),
            "step s of c goes on with t, which is no step of it",
        ),
        (refused(&[declaration("c", vec![step("s", &[], &[]), step("s", &[], &[])])]), "controller c has two steps s"),
        (
            refused(&[Declaration { in_flight: 0, ..declaration("c", vec![step("s", &[], &[])]) }]),
            "lets no problem be under way",
        ),
        (
            refused(&[declaration(
                "c",
                vec![Declared { then: vec![("t", Taken::of::<String>())], ..step("s", &[], &[]) }, step("t", &[], &[])],
            )]),
            "hands t a alloc::string::String, and t takes a u32",
        ),
    ] {
        assert!(message.contains(expected), "{message} / {expected}");
    }
    // Across controllers, and several at once.
    let small = declaration("c", vec![step("s", &[&Dependency::bounded("database", 5)], &["nowhere"])]);
    let large = declaration("d", vec![step("s", &[&Dependency::bounded("database", 50).queue(1)], &[])]);
    let message = refused(&[small, large]);
    for expected in
        ["declared with size 5 and a queue of 16, and with size 50 and a queue of 1", "goes on with nowhere"]
    {
        assert!(message.contains(expected), "{message} / {expected}");
    }
}

struct Broken;

const STEP: Step<u32> = Step::named("step");

impl StepController for Broken {
    const NAME: &'static str = "echo";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        let nobody = Dependency::bounded("nobody", 0);
        steps.first(STEP).uses(&nobody).run(|_, _: &Problem<'_, ()>, n| Ok(Next::solved(n)));
    }
}

#[test]
fn an_agent_whose_steps_cannot_work_does_not_start() {
    let refused = Rig::start(Agent::new().steps(Broken), 1).err().expect("its dependency serves nobody");
    assert!(matches!(&refused, AgentError::Steps(steps::WiringError(errors)) if errors.len() == 1), "{refused}");
    assert_eq!(refused.exit_code(), 2);
    let twice = Rig::start(Agent::new().controller(Echo).steps(Broken), 1).err().expect("two have one name");
    assert!(matches!(twice, AgentError::Settings(_)), "{twice}");
}

/// What a dependency uses of those after it, and its size if it is bounded.
type Node = (BTreeSet<usize>, Option<usize>);

/// Dependencies, and which of them a step uses.
fn graphs() -> impl Strategy<Value = (Vec<Node>, BTreeSet<usize>)> {
    (1usize..9).prop_flat_map(|count| {
        let nodes = (0..count).map(|index| {
            let later = prop::collection::btree_set(index + 1..count.max(index + 2), 0..3);
            (
                later.prop_map(move |uses| uses.into_iter().filter(|other| *other < count).collect()),
                prop::option::weighted(0.3, 1usize..100),
            )
        });
        (nodes.collect::<Vec<_>>(), prop::collection::btree_set(0..count, 0..4))
    })
}

proptest! {
    #[test]
    fn a_steps_pool_is_the_smallest_of_those_that_it_comes_to((nodes, used) in graphs()) {
        let mut built: Vec<Option<Dependency>> = vec![None; nodes.len()];
        for (index, (uses, size)) in nodes.iter().enumerate().rev() {
            let name = format!("d{index}");
            let mut dependency = size.map_or_else(|| Dependency::client(&name), |size| Dependency::bounded(&name, size));
            for other in uses {
                dependency = dependency.uses(built[*other].as_ref().expect("later ones are built"));
            }
            built[index] = Some(dependency);
        }
        // Whatever can be come to, the slow way.
        let mut reached = used.clone();
        for _ in 0..nodes.len() {
            reached = reached.iter().flat_map(|index| nodes[*index].0.iter().copied()).chain(reached.iter().copied()).collect();
        }
        let sizes: Vec<usize> = reached.iter().filter_map(|index| nodes[*index].1).collect();
        let uses: Vec<&Dependency> = used.iter().map(|index| built[*index].as_ref().expect("all are built")).collect();
        let plan = plan(vec![step("s", &uses, &[])]);
        let least = sizes.iter().min().copied();
        match plan.flows[0].steps[0].place {
            Place::Pool(pool) => prop_assert_eq!(Some(plan.pools[pool].bound.most), least),
            Place::Anywhere => prop_assert_eq!(least, None),
            Place::Cores => prop_assert!(false, "nobody asked for cores"),
        }
        prop_assert_eq!(plan.warnings.len(), usize::from(sizes.len() > 1));
    }
}
