//! What problems need of a workstation, and who has it. Pure.
//!
//! The database has checked a requirement when it was set; here it is matched, once for each workstation and each distinct
//! requirement in sight, however many jobs have it and however much is handed out. Whoever has what the same requirements want
//! stands in one line, whatever its cores and memory are.

use pcfarm_proto::v1;
use pcfarm_proto::version::Version;
use pcfarm_sql::json::RawJson;
use serde::Deserialize;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A distinct requirement, for as long as it is known; none is ever given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequirementId(pub u64);

/// Conditions that must all hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirement(Vec<Condition>);

/// As `pcfarm.condition` makes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case", deny_unknown_fields)]
enum Condition {
    Cores {
        is: Comparison,
        value: u64,
    },
    /// In bytes.
    Memory {
        is: Comparison,
        value: u64,
    },
    Gpus {
        is: Comparison,
        value: u64,
    },
    System {
        is: Equality,
        value: String,
    },
    Arch {
        is: Equality,
        value: String,
    },
    /// A vendor.
    Gpu {
        is: Equality,
        value: String,
    },
    Program {
        is: Equality,
        value: String,
        at_least: Option<String>,
    },
    Label {
        is: Equality,
        value: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Comparison {
    #[serde(rename = "=")]
    Equal,
    #[serde(rename = "!=")]
    Different,
    #[serde(rename = "<")]
    Less,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = ">")]
    More,
    #[serde(rename = ">=")]
    AtLeast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Equality {
    #[serde(rename = "=")]
    Has,
    #[serde(rename = "!=")]
    HasNot,
}

/// What a workstation has, as its agent and an administrator say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub cores: u64,
    pub memory_bytes: u64,
    pub system_name: String,
    pub arch: String,
    /// The vendor of each.
    pub gpus: Vec<String>,
    /// Names, and versions where they are known.
    pub programs: Vec<(String, Option<Version>)>,
    pub labels: BTreeSet<String>,
}

impl Facts {
    /// As its agent says; the server has checked it.
    pub fn of(hello: &v1::Hello) -> Facts {
        Facts {
            cores: u64::from(hello.cores.max(1)),
            memory_bytes: hello.memory_bytes,
            system_name: hello.system_name.clone(),
            arch: hello.arch.clone(),
            gpus: vendors(&hello.gpus),
            programs: versions(&hello.programs),
            labels: hello.labels.iter().cloned().collect(),
        }
    }

    /// Returns these facts with other GPUs and programs.
    pub fn equipped(&self, equipment: &v1::Equipment) -> Facts {
        Facts { gpus: vendors(&equipment.gpus), programs: versions(&equipment.programs), ..self.clone() }
    }
}

fn vendors(gpus: &[v1::Gpu]) -> Vec<String> {
    gpus.iter().map(|gpu| gpu.vendor.clone()).collect()
}

fn versions(programs: &[v1::Program]) -> Vec<(String, Option<Version>)> {
    programs.iter().map(|program| (program.name.clone(), Version::of(&program.version))).collect()
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Comparison::Equal => ordering.is_eq(),
            Comparison::Different => ordering.is_ne(),
            Comparison::Less => ordering.is_lt(),
            Comparison::AtMost => ordering.is_le(),
            Comparison::More => ordering.is_gt(),
            Comparison::AtLeast => ordering.is_ge(),
        }
    }
}

impl Condition {
    fn holds(&self, of: &Facts) -> bool {
        let is = |is: &Equality, has: bool| (*is == Equality::Has) == has;
        match self {
            Condition::Cores { is, value } => is.holds(of.cores.cmp(value)),
            Condition::Memory { is, value } => is.holds(of.memory_bytes.cmp(value)),
            Condition::Gpus { is, value } => is.holds((of.gpus.len() as u64).cmp(value)),
            Condition::System { is: op, value } => is(op, of.system_name == *value),
            Condition::Arch { is: op, value } => is(op, of.arch == *value),
            Condition::Gpu { is: op, value } => is(op, of.gpus.contains(value)),
            Condition::Label { is: op, value } => is(op, of.labels.contains(value)),
            Condition::Program { is: op, value, at_least } => {
                let is_new = |version: &Option<Version>| match at_least {
                    None => true,
                    Some(text) => version.is_some() && *version >= Version::of(text),
                };
                is(op, of.programs.iter().any(|(name, version)| name == value && is_new(version)))
            }
        }
    }
}

impl Requirement {
    /// As the database keeps it. What this server does not understand nobody has: it must not let in what it keeps out.
    fn of(text: &RawJson) -> Option<Requirement> {
        serde_json::from_slice(&text.0).ok().map(Requirement)
    }

    pub fn is_met(&self, by: &Facts) -> bool {
        self.0.iter().all(|condition| condition.holds(by))
    }
}

/// Distinct requirements, by what they are called here.
#[derive(Debug, Default)]
pub struct Requirements {
    ids: HashMap<RawJson, RequirementId>,
    known: HashMap<RequirementId, Option<Arc<Requirement>>>,
    /// Of lanes since the look began.
    in_sight: HashSet<RequirementId>,
    given: u64,
    /// Grows when another one is known, or one is forgotten.
    version: u64,
}

/// Those that no lane in sight has are kept, as they come and go, up to so many more than are in sight.
const KEPT: usize = 64;

impl Requirements {
    /// Changes with what is known.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn begin_look(&mut self) {
        self.in_sight.clear();
    }

    /// What a lane's requirement is called.
    pub fn note(&mut self, requirement: &RawJson) -> RequirementId {
        let id = self.ids.get(requirement).copied().unwrap_or_else(|| {
            self.given += 1;
            self.version += 1;
            let id = RequirementId(self.given);
            self.ids.insert(requirement.clone(), id);
            self.known.insert(id, Requirement::of(requirement).map(Arc::new));
            id
        });
        self.in_sight.insert(id);
        id
    }

    /// Forgets what was not in sight, once that is much.
    pub fn end_look(&mut self) {
        if self.known.len() > self.in_sight.len() + KEPT {
            self.known.retain(|id, _| self.in_sight.contains(id));
            self.ids.retain(|_, id| self.in_sight.contains(id));
            self.version += 1;
        }
    }

    /// Which of them a workstation meets. Those of `judged` are not looked at again; it holds what is known afterwards.
    pub fn met(&self, by: &Facts, judged: &mut HashMap<RequirementId, bool>) -> BTreeSet<RequirementId> {
        judged.retain(|id, _| self.known.contains_key(id));
        for (id, requirement) in &self.known {
            let is_met = || requirement.as_ref().is_some_and(|requirement| requirement.is_met(by));
            judged.entry(*id).or_insert_with(is_met);
        }
        judged.iter().filter(|(_, met)| **met).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests;
