//! What the server is asked for: how much, and of what kind.
//!
//! Owns the credit given, and what is paused. Problems that wait for pools of their own are asked for by themselves, so
//! that neither a dependency that is slow keeps the cores from work, nor work for the cores the dependency.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_message::Message as Out;
use tracing::info;

use super::held::Held;
use super::{
    Drain, HELD_LIMIT, INTAKE_CHANGE_EVERY, Inventory, Kind, Open, Session, UNACKNOWLEDGED_CHECKOUTS_LIMIT,
    UNACKNOWLEDGED_PROBLEMS_LIMIT, kind_of,
};

impl Inventory {
    /// Gives credit, so that of each kind one checkout is computed and some more are here or on their way. The tails
    /// of checkouts that run beside a later one are no reason to ask for less; that no core could compute
    /// what comes is one to ask for nothing.
    pub(super) fn ask(&mut self, now: Duration, revoked_cores: u32) {
        if !matches!(self.drain, Drain::No)
            || self.leaving.is_some()
            || self.too_much_is_unacknowledged(now)
            || revoked_cores >= self.profile.hello.cores
        {
            return;
        }
        let Session::Open(open) = &self.session else {
            return;
        };
        let paused = self.to_be_paused(open);
        let rooms = self.rooms(open);
        let room = rooms.iter().filter(|(kind, _)| !self.is_among(&paused, kind)).map(|(_, room)| *room).max();
        let (changes, too_early) = (paused != open.paused, now < open.intake_due);
        if changes && too_early {
            // Credit that is given now may be used for what there is enough of.
            return;
        }
        let Session::Open(open) = &mut self.session else {
            return;
        };
        if changes {
            open.paused.clone_from(&paused);
            open.intake_due = now + INTAKE_CHANGE_EVERY;
            let paused = paused.into_iter().collect();
            self.actions.push(super::Action::Send(Out::Intake(v1::Intake { paused })));
        }
        let checkouts = room.unwrap_or(0).saturating_sub(open.credit);
        if checkouts > 0 {
            open.credit += checkouts;
            self.send(Out::Credit(v1::Credit { checkouts }));
        }
    }

    fn too_much_is_unacknowledged(&self, now: Duration) -> bool {
        // What the server keeps takes memory here, and no more.
        let computed = || self.held.values().filter(|held| !held.is_computing() && !held.kept);
        let of_checkouts: usize = computed().map(|held| held.checkout.bytes).sum();
        self.unacknowledged_bytes() + of_checkouts >= self.profile.unacknowledged_bytes
            // It has enough to do with what many agents have sent: with more, it would not answer within their patience.
            || self.outbox.is_unanswered_for(self.lease / 2, self.contact.busy_at, now)
            || self.held.len() >= HELD_LIMIT
            || computed().count() >= UNACKNOWLEDGED_CHECKOUTS_LIMIT
            || computed().map(|held| held.checkout.problems.len()).sum::<usize>() >= UNACKNOWLEDGED_PROBLEMS_LIMIT
    }

    /// How many more checkouts of each kind there is room for.
    fn rooms(&self, open: &Open) -> BTreeMap<Kind, u32> {
        let kind = |controller: &str| if open.takes_intake { kind_of(&self.profile, controller) } else { None };
        let mut here: BTreeMap<Kind, (u32, bool)> = BTreeMap::new();
        for controller in &self.profile.hello.controllers {
            here.entry(kind(controller)).or_default();
        }
        for held in self.held.values() {
            let (waiting, runs) = here.entry(kind(&held.checkout.controller)).or_default();
            *waiting += u32::from(held.is_waiting());
            *runs |= held.is_running();
        }
        for arriving in open.arriving.values() {
            here.entry(kind(&arriving.controller)).or_default().0 += 1;
        }
        let room = |(kind, (waiting, runs)): (Kind, (u32, bool))| {
            let room = (1 + self.prefetch(&kind)).saturating_sub(waiting + u32::from(runs));
            (kind, room)
        };
        here.into_iter().map(room).collect()
    }

    /// Controllers of kinds that there is no room for while there is some for others.
    pub(super) fn to_be_paused(&self, open: &Open) -> BTreeSet<String> {
        if !open.takes_intake || self.profile.apart.is_empty() {
            return BTreeSet::new();
        }
        let rooms = self.rooms(open);
        if rooms.values().all(|room| *room == 0) {
            // It asks for nothing: no word is needed.
            return open.paused.clone();
        }
        let full = |controller: &&String| rooms.get(&kind_of(&self.profile, controller)) == Some(&0);
        self.profile.hello.controllers.iter().filter(full).cloned().collect()
    }

    fn is_among(&self, paused: &BTreeSet<String>, kind: &Kind) -> bool {
        match kind {
            Some(controller) => paused.contains(controller),
            None => {
                let of_cores = |controller: &&String| !self.profile.apart.contains(*controller);
                self.profile.hello.controllers.iter().filter(of_cores).any(|controller| paused.contains(controller))
            }
        }
    }

    /// What keeps controllers' problems from being begun.
    pub(super) fn note_held_up(&mut self, held_up: BTreeMap<String, String>) {
        for (controller, why) in &held_up {
            if !self.held_up.contains_key(controller) {
                info!(controller, why, "a bottleneck: no more of its problems are begun than it serves");
            }
        }
        for controller in self.held_up.keys().filter(|controller| !held_up.contains_key(*controller)) {
            info!(controller, "its problems are begun as they come again");
        }
        self.held_up = held_up;
    }

    /// What keeps controllers from work that is here.
    pub(super) fn bottlenecks(&self) -> String {
        let waits = |controller: &str| {
            let of_it = |held: &&Held| held.is_computing() && held.checkout.controller == controller;
            self.held.values().filter(of_it).any(|held| held.checkout.untaken() > 0)
        };
        let reasons = self.held_up.iter().filter(|(controller, _)| waits(controller)).map(|(_, why)| why.as_str());
        reasons.collect::<Vec<_>>().join("; ")
    }
}
