//! What a session may be given: what its agent has and has enough of, what an administrator says, and which requirements it
//! was found to meet.

use crate::dispatch::choose::Selection;
use crate::dispatch::requirement::{Facts, RequirementId, Requirements};
use pcfarm_sql::json::RawJson;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What it may be given.
#[derive(Clone, Debug)]
pub struct Selecting {
    pub selection: Arc<Selection>,
    /// The same for all that may be given the same.
    pub kind: Arc<str>,
    /// As it was chosen.
    chosen: Option<RawJson>,
    /// Controllers of which the agent has enough for now.
    paused: BTreeSet<String>,
    /// What it has, with what an administrator says.
    facts: Arc<Facts>,
    /// The same for all of which all is the same but what requirements look at.
    base: Arc<str>,
    /// What was found out about it, and of which version of what is required.
    judged: HashMap<RequirementId, bool>,
    judged_at: Option<u64>,
}

/// What an administrator says that a workstation may take, as `pcfarm.set_selection` keeps it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Chosen {
    pub required: BTreeSet<String>,
    pub excluded: BTreeSet<String>,
    pub preferred: BTreeSet<String>,
    pub job_types: BTreeSet<String>,
    pub labels: BTreeSet<String>,
    pub largest_problem: Option<u64>,
}

impl Selecting {
    pub fn new(
        controllers: &BTreeSet<String>,
        of_agent: &Facts,
        by_administrator: Option<&RawJson>,
        paused: BTreeSet<String>,
    ) -> Selecting {
        // The database has checked it. What this server does not understand must not let in what it keeps out: nobody's work.
        let nobody = || Chosen { required: BTreeSet::from(["\0".to_owned()]), ..Chosen::default() };
        let chosen = by_administrator.map(|chosen| serde_json::from_slice(&chosen.0).unwrap_or_else(|_| nobody()));
        let chosen: Chosen = chosen.unwrap_or_default();
        let names = |names: &BTreeSet<String>| names.iter().map(|name| Arc::from(name.as_str())).collect();
        let mut facts = of_agent.clone();
        facts.labels.extend(chosen.labels.iter().cloned());
        let selection = Selection {
            controllers: controllers.difference(&paused).cloned().collect(),
            required: names(&chosen.required),
            excluded: names(&chosen.excluded),
            preferred: names(&chosen.preferred),
            job_types: names(&chosen.job_types),
            // Until it is judged.
            met: BTreeSet::new(),
            largest_problem: chosen.largest_problem,
        };
        let base: Arc<str> = format!("{controllers:?} {paused:?} {chosen:?}").into();
        Selecting {
            selection: Arc::new(selection),
            kind: base.clone(),
            chosen: by_administrator.cloned(),
            paused,
            facts: Arc::new(facts),
            base,
            judged: HashMap::new(),
            judged_at: None,
        }
    }

    pub fn is_chosen(&self, chosen: Option<&RawJson>) -> bool {
        self.chosen.as_ref() == chosen
    }

    /// What an administrator says is this from now on. True if that is something else.
    pub fn select(&mut self, controllers: &BTreeSet<String>, of_agent: &Facts, chosen: Option<&RawJson>) -> bool {
        let now = Selecting::new(controllers, of_agent, chosen, self.paused.clone());
        let changed = self.base != now.base || self.facts != now.facts;
        if changed {
            self.become_that(now);
        }
        changed
    }

    /// The agent has enough of these from now on. True if that is something else.
    pub fn pause(&mut self, controllers: &BTreeSet<String>, of_agent: &Facts, paused: BTreeSet<String>) -> bool {
        let changed = self.paused != paused;
        if changed {
            self.become_that(Selecting::new(controllers, of_agent, self.chosen.as_ref(), paused));
        }
        changed
    }

    /// The agent has this from now on.
    pub fn equip(&mut self, controllers: &BTreeSet<String>, of_agent: &Facts) {
        let now = Selecting::new(controllers, of_agent, self.chosen.as_ref(), self.paused.clone());
        self.become_that(now);
    }

    /// What was found out is still so, if it is about the same.
    fn become_that(&mut self, now: Selecting) {
        let before = std::mem::replace(self, now);
        if self.facts == before.facts {
            self.judged = before.judged;
        }
    }

    /// Is it known which of these it meets?
    pub fn is_judged(&self, requirements: &Requirements) -> bool {
        self.judged_at == Some(requirements.version()) || (requirements.is_empty() && self.judged.is_empty())
    }

    /// Finds out which requirements are met that were not known before.
    pub fn judge(&mut self, requirements: &Requirements) {
        let met = requirements.met(&self.facts, &mut self.judged);
        self.judged_at = Some(requirements.version());
        if self.selection.met != met {
            self.kind = if met.is_empty() { self.base.clone() } else { format!("{} {met:?}", self.base).into() };
            Arc::make_mut(&mut self.selection).met = met;
        }
    }
}
