//! From declarations to pools: which step runs where, and what cannot work. Pure.
//!
//! Dependencies of one name are one, across all controllers. A step belongs to the bounded dependency that it uses, itself
//! or through clients; one that uses two is put where the fewer threads are, with a warning: the other one does
//! not count it, and can be asked by more than its size.

use std::collections::{BTreeMap, BTreeSet};

use super::declare::{Declaration, Declared};
use super::dependency::{Bound, CORES, Dependency};

/// Most pools, and most controllers with steps, of one agent: each is a bit in a [`Set`].
const LIMIT: usize = 64;

/// A set of pools (bits from 0) and controllers (bits from 64).
pub(super) type Set = u128;

pub(super) fn pool_bit(pool: usize) -> Set {
    1 << pool
}

pub(super) fn flow_bit(flow: usize) -> Set {
    1 << (LIMIT + flow)
}

/// What all declarations come to.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub pools: Vec<PoolPlan>,
    /// In the order of the declarations.
    pub flows: Vec<FlowPlan>,
    pub warnings: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PoolPlan {
    pub name: String,
    pub bound: Bound,
}

#[derive(Debug)]
pub(super) struct FlowPlan {
    pub first: usize,
    pub steps: Vec<StepPlan>,
}

#[derive(Debug)]
pub(super) struct StepPlan {
    pub place: Place,
    /// Indexes of the steps that may follow.
    pub then: Vec<usize>,
    /// Pools that a problem at this step may still come to, this one's own included.
    pub reach: Set,
}

/// Where a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the thread that finished the step before.
    Anywhere,
    Cores,
    Pool(usize),
}

/// Why declared steps cannot work: all reasons that were found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the controllers' steps cannot work: {}", .0.join("; "))]
pub struct WiringError(pub Vec<String>);

/// Wires the declared controllers of an agent, or says everything that cannot work.
pub(super) fn wire(declarations: &[Declaration]) -> Result<Plan, WiringError> {
    let mut errors = Vec::new();
    let graph = Graph::of(declarations, &mut errors);
    let pools = graph.pools(&mut errors);
    if declarations.len() > LIMIT {
        errors.push(format!("there are {} controllers with steps, and can be {LIMIT}", declarations.len()));
    }
    let mut plan = Plan { pools, ..Plan::default() };
    for declaration in declarations {
        let flow = wire_flow(declaration, &graph, &plan.pools, &mut errors, &mut plan.warnings);
        plan.flows.extend(flow);
    }
    if errors.is_empty() { Ok(plan) } else { Err(WiringError(errors)) }
}

/// All dependencies by name.
#[derive(Default)]
struct Graph {
    nodes: BTreeMap<String, Node>,
}

#[derive(Default)]
struct Node {
    bound: Option<Bound>,
    uses: BTreeSet<String>,
    declared: bool,
}

impl Graph {
    fn of(declarations: &[Declaration], errors: &mut Vec<String>) -> Graph {
        let mut graph = Graph::default();
        let steps = declarations.iter().flat_map(|declaration| &declaration.steps);
        steps.flat_map(|step| &step.uses).for_each(|dependency| graph.add(dependency, errors));
        for (name, node) in &graph.nodes {
            if !node.declared && name != CORES {
                errors.push(format!("dependency {name} is used by name, and nobody declares it"));
            }
        }
        if let Some(cycle) = graph.cycle() {
            errors.push(format!("dependencies use each other in a circle: {}", cycle.join(" uses ")));
            // So that what else is wrong can be said as well.
            graph.nodes.values_mut().for_each(|node| node.uses.clear());
        }
        graph
    }

    fn add(&mut self, dependency: &Dependency, errors: &mut Vec<String>) {
        let name = &dependency.name;
        if name.is_empty() || name.contains('\0') {
            errors.push(format!("a dependency needs a name, and {name:?} is none"));
        }
        if name == CORES && (dependency.bound.is_some() || !dependency.uses.is_empty()) {
            errors.push(format!("{CORES} are the agent's own: another dependency needs another name"));
        }
        let uses = dependency.uses.iter().map(|other| other.name.clone()).chain(dependency.uses_named.iter().cloned());
        let uses: Vec<String> = uses.collect();
        for other in &dependency.uses_named {
            self.nodes.entry(other.clone()).or_default();
        }
        let node = self.nodes.entry(name.clone()).or_default();
        if node.declared && node.bound != dependency.bound {
            let (one, other) = (said(node.bound), said(dependency.bound));
            let error = format!("dependency {name} is declared {one}, and {other}: one name is one dependency");
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
        node.bound = node.bound.or(dependency.bound);
        node.declared = true;
        node.uses.extend(uses);
        dependency.uses.iter().for_each(|other| self.add(other, errors));
    }

    /// The names of a circle, the first one again at its end.
    fn cycle(&self) -> Option<Vec<String>> {
        let mut done = BTreeSet::new();
        self.nodes.keys().find_map(|name| self.cycle_from(name, &mut Vec::new(), &mut done))
    }

    fn cycle_from<'a>(
        &'a self,
        name: &'a str,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|earlier| *earlier == name) {
            return Some(path[start..].iter().chain([&name]).map(|name| (*name).to_owned()).collect());
        }
        if !done.insert(name) {
            return None;
        }
        path.push(name);
        let found = self.nodes.get(name)?.uses.iter().find_map(|other| self.cycle_from(other, path, done));
        path.pop();
        found
    }

    fn pools(&self, errors: &mut Vec<String>) -> Vec<PoolPlan> {
        let bounded = self.nodes.iter().filter_map(|(name, node)| Some((name, node.bound?)));
        let pools: Vec<PoolPlan> = bounded.map(|(name, bound)| PoolPlan { name: name.clone(), bound }).collect();
        for PoolPlan { name, bound } in &pools {
            if bound.least == 0 {
                errors.push(format!("dependency {name} can serve nobody: its size is 0"));
            } else if bound.most < bound.least {
                errors.push(format!("dependency {name} may grow to {}, and has {} already", bound.most, bound.least));
            }
        }
        if pools.len() > LIMIT {
            errors.push(format!("there are {} bounded dependencies, and can be {LIMIT}", pools.len()));
        }
        pools
    }

    /// What a step comes to, by name, with the shortest way there.
    fn found_by<'a>(&'a self, step: &'a Declared) -> BTreeMap<&'a str, Vec<&'a str>> {
        let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut coming: std::collections::VecDeque<Vec<&str>> =
            step.uses.iter().map(|dependency| vec![step.name, dependency.name.as_str()]).collect();
        while let Some(path) = coming.pop_front() {
            let Some(name) = path.last().copied() else { continue };
            if found.contains_key(name) {
                continue;
            }
            let uses = self.nodes.get(name).into_iter().flat_map(|node| &node.uses);
            coming.extend(uses.map(|other| path.iter().copied().chain([other.as_str()]).collect()));
            found.insert(name, path);
        }
        found
    }
}

fn said(bound: Option<Bound>) -> String {
    match bound {
        None => "without a bound".to_owned(),
        Some(Bound { least, most, queue }) if least == most => format!("with size {least} and a queue of {queue}"),
        Some(Bound { least, most, queue }) => format!("with sizes {least} to {most} and a queue of {queue}"),
    }
}

fn wire_flow(
    declaration: &Declaration,
    graph: &Graph,
    pools: &[PoolPlan],
    errors: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Option<FlowPlan> {
    let (of, steps) = (declaration.name, &declaration.steps);
    let before = errors.len();
    if declaration.in_flight == 0 {
        errors.push(format!("controller {of} lets no problem be under way"));
    }
    for (index, step) in steps.iter().enumerate() {
        if steps[..index].iter().any(|earlier| earlier.name == step.name) {
            errors.push(format!("controller {of} has two steps {}", step.name));
        }
    }
    let index_of = |name: &str| steps.iter().position(|step| step.name == name);
    let first = declaration.first.and_then(index_of);
    if first.is_none() {
        errors.push(format!("controller {of} has no first step"));
    }
    let mut planned = Vec::with_capacity(steps.len());
    for step in steps {
        let mut then = Vec::new();
        for (name, handed) in &step.then {
            match index_of(name) {
                None => errors.push(format!("step {} of {of} goes on with {name}, which is no step of it", step.name)),
                Some(next) if steps[next].takes != *handed => errors.push(format!(
                    "step {} of {of} hands {name} a {}, and {name} takes a {}",
                    step.name, handed.name, steps[next].takes.name
                )),
                Some(next) => then.push(next),
            }
        }
        let place = place(declaration.name, step, graph, pools, warnings);
        let own = if let Place::Pool(pool) = place { pool_bit(pool % LIMIT) } else { 0 };
        planned.push(StepPlan { place, then, reach: own });
    }
    if errors.len() > before {
        return None;
    }
    let first = first?;
    reach(&mut planned);
    for (step, _) in steps.iter().zip(comes_to(&planned, first)).filter(|(_, reached)| !reached) {
        warnings.push(format!("step {} of {of} comes after no other: it never runs", step.name));
    }
    Some(FlowPlan { first, steps: planned })
}

fn place(of: &str, step: &Declared, graph: &Graph, pools: &[PoolPlan], warnings: &mut Vec<String>) -> Place {
    let found = graph.found_by(step);
    let way = |name: &str| found.get(name).map(|path| path.join(" uses ")).unwrap_or_default();
    let mut bounded: Vec<usize> =
        (0..pools.len()).filter(|pool| found.contains_key(pools[*pool].name.as_str())).collect();
    bounded.sort_by_key(|pool| pools[*pool].bound.most);
    let on_cores = found.contains_key(CORES);
    let Some(&pool) = bounded.first() else {
        return if on_cores { Place::Cores } else { Place::Anywhere };
    };
    let mut needs: Vec<&str> = bounded.iter().map(|pool| pools[*pool].name.as_str()).collect();
    needs.extend(on_cores.then_some(CORES));
    if needs.len() > 1 {
        let ways: Vec<String> = needs.iter().map(|name| format!("{name} ({})", way(name))).collect();
        warnings.push(format!(
            "step {} of {of} needs {} pools: {}. It runs on that of {} and is not counted by the rest, which so \
             can be used by more than they serve: split it",
            step.name,
            needs.len(),
            ways.join(" and "),
            pools[pool].name
        ));
    }
    Place::Pool(pool)
}

/// Adds to each step what those after it come to.
fn reach(steps: &mut [StepPlan]) {
    let mut changed = true;
    while changed {
        changed = false;
        for index in 0..steps.len() {
            let after = steps[index].then.iter().fold(0, |all, next| all | steps[*next].reach);
            changed |= steps[index].reach | after != steps[index].reach;
            steps[index].reach |= after;
        }
    }
}

fn comes_to(steps: &[StepPlan], first: usize) -> Vec<bool> {
    let mut reached = vec![false; steps.len()];
    let mut coming = vec![first];
    while let Some(step) = coming.pop() {
        if !std::mem::replace(&mut reached[step], true) {
            coming.extend(&steps[step].then);
        }
    }
    reached
}
