//! Requests to return unbegun problems while another workstation is idle.
//!
//! A workstation has been idle for a second, so the queue has nothing for it, and another workstation holds more problems than
//! it computes. The server asks the holder to return problems that it would not begin soon, also if the holder gives way to a person,
//! is drained, stops, or has just connected again. Returned problems are handed out like any others. Agents choose the problems, by
//! their own speed; the database decides which of them come back. Servers tell each other with their pulse which workstations are idle. A statement is sent only while a workstation is idle anywhere and
//! one of this server has problems to spare.

use crate::farm::Farm;
use crate::session::Session;
use anyhow::Context;
use pcfarm_proto::RETURNED_LIMIT;
use pcfarm_proto::ids::{CheckoutId, WorkstationId};
use pcfarm_proto::v1::{self, server_message};
use pcfarm_sql::checkout::{self, Returnable};
use rand::seq::SliceRandom;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;
use tracing::{debug, warn};

/// A workstation that has had free cores for longer is idle. Checkouts that are younger are not asked for: they may be on their
/// way.
const IDLE: Duration = Duration::from_secs(1);

const LOOK: Duration = Duration::from_millis(500);

/// Idle workstations that a server names to the others, and considers itself.
const NAMED_LIMIT: usize = 16;

/// Most workstations that one look considers, and most checkouts of each.
const ASKED_LIMIT: usize = 16;
const CHECKOUTS_LIMIT: usize = 64;

/// A request is for so many problems at least. A request for fewer would leave the idle workstation idle again within a moment.
const WORTH_ASKING: usize = 1000;

/// Longest that the database may take; the next look tries again.
const DEADLINE: Duration = Duration::from_secs(10);

/// Workstations that are idle at other servers, as of the last pulse.
#[derive(Debug, Default)]
pub struct IdleElsewhere {
    workstations: Mutex<Vec<WorkstationId>>,
    count: AtomicUsize,
}

impl IdleElsewhere {
    pub fn set(&self, workstations: Vec<WorkstationId>) {
        self.count.store(workstations.len(), Ordering::Relaxed);
        *self.workstations.lock().unwrap_or_else(PoisonError::into_inner) = workstations;
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn get(&self) -> Vec<WorkstationId> {
        self.workstations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns some idle workstations of this server, one of each kind first.
pub fn idle_here(farm: &Farm) -> Vec<WorkstationId> {
    let mut idle: Vec<Arc<Session>> = farm.sessions();
    idle.retain(|session| session.is_idle_for(IDLE));
    if idle.len() > NAMED_LIMIT {
        idle.shuffle(&mut rand::rng());
    }
    let mut kinds = HashSet::new();
    let (firsts, others): (Vec<_>, Vec<_>) = idle.into_iter().partition(|session| kinds.insert(session.kind()));
    firsts.into_iter().chain(others).take(NAMED_LIMIT).map(|session| session.workstation_id).collect()
}

/// A workstation that holds more problems than it computes.
#[derive(Clone, Debug)]
struct Holder<W> {
    who: W,
    /// Some of its checkouts, in the order in which it got them.
    checkouts: Vec<CheckoutId>,
    surplus: usize,
    /// The last look at it, if there was one.
    looked_at: Option<Instant>,
}

/// Holders that this look considers: those whose turn it is, and of these those with the most to spare. The number of idle
/// workstations does not matter yet: holders without a returnable problem must not keep others from their turn.
fn candidates<W>(mut holders: Vec<Holder<W>>) -> Vec<Holder<W>> {
    holders.sort_by_key(|holder| (holder.looked_at, std::cmp::Reverse(holder.surplus)));
    holders.truncate(ASKED_LIMIT);
    holders
}

/// Number of problems to ask a holder for, while one in `workstations` of those that would share its surplus is the holder itself.
/// A few requests then move all that idle workstations can compute, however large a checkout is.
fn share(surplus: usize, workstations: usize) -> u32 {
    let of_others = surplus - surplus / workstations.max(1);
    u32::try_from(of_others.clamp(WORTH_ASKING, RETURNED_LIMIT)).unwrap_or(u32::MAX)
}

/// Plan of one look.
struct Plan<W> {
    /// Requests to the holders with the most to spare, no more than workstations are idle.
    requests: Vec<(Holder<W>, v1::GiveBack)>,
    /// Holders without a returnable checkout. Other holders wait for the next look.
    barren: Vec<Holder<W>>,
}

fn plan<W>(mut holders: Vec<Holder<W>>, returnable: &[Returnable], idle: usize) -> Plan<W> {
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.surplus));
    let whole_convoys: HashMap<CheckoutId, bool> =
        returnable.iter().map(|one| (one.checkout_id, one.whole_convoys)).collect();
    let mut plan = Plan { requests: Vec::new(), barren: Vec::new() };
    for holder in holders {
        let returnable = holder.checkouts.iter().filter_map(|checkout| {
            let whole_convoys = *whole_convoys.get(checkout)?;
            Some(v1::Returnable { checkout_id: checkout.0, whole_convoys })
        });
        let checkouts: Vec<_> = returnable.collect();
        if checkouts.is_empty() {
            plan.barren.push(holder);
        } else if plan.requests.len() < idle {
            plan.requests.push((holder, v1::GiveBack { checkouts, problems: 0 }));
        }
    }
    let workstations = idle.div_ceil(plan.requests.len().max(1)).saturating_add(1);
    for (holder, request) in &mut plan.requests {
        request.problems = share(holder.surplus, workstations);
    }
    plan
}

/// Asks workstations to return problems while others are idle, until the server stops.
pub async fn run(farm: Arc<Farm>) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
        }
        let looking = tokio::time::timeout(DEADLINE, look(&farm));
        let outcome = looking.await.unwrap_or_else(|_| Err(anyhow::anyhow!("the database does not answer")));
        if let Err(error) = outcome {
            warn!(error = format!("{error:#}"), "cannot look for problems to return: trying again");
        }
    }
}

async fn look(farm: &Arc<Farm>) -> anyhow::Result<()> {
    let mut idle = idle_here(farm);
    idle.extend(farm.idle_elsewhere.get());
    if idle.is_empty() {
        return Ok(());
    }
    let holder = |who: Arc<Session>| {
        let (checkouts, surplus) = who.surplus(IDLE, CHECKOUTS_LIMIT)?;
        let looked_at = who.looked_at();
        Some(Holder { who, checkouts, surplus, looked_at })
    };
    let holders = candidates(farm.sessions().into_iter().filter_map(holder).collect());
    if holders.is_empty() {
        return Ok(());
    }
    let checkouts: Vec<CheckoutId> = holders.iter().flat_map(|holder| holder.checkouts.iter().copied()).collect();
    let client = farm.pool.get().await.context("getting a connection")?;
    let returnable =
        checkout::returnable(&*client, &idle, &checkouts).await.context("reading what others could take")?;
    let plan = plan(holders, &returnable, idle.len());
    plan.barren.iter().for_each(|holder| holder.who.looked(holder.checkouts.first().copied()));
    for (Holder { who: session, checkouts, .. }, request) in plan.requests {
        session.asked(checkouts.first().copied());
        debug!(workstation_id = %session.workstation_id, checkouts = request.checkouts.len(), "asked to return problems");
        let message = v1::ServerMessage { message: Some(server_message::Message::GiveBack(request)) };
        // Full: a later look asks again.
        drop(session.out.try_send(Ok(message).into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(who: &'static str, checkouts: std::ops::Range<i64>, surplus: usize) -> Holder<&'static str> {
        Holder { who, checkouts: checkouts.map(CheckoutId).collect(), surplus, looked_at: None }
    }

    fn returnable(checkouts: &[i64]) -> Vec<Returnable> {
        checkouts.iter().map(|&id| Returnable { checkout_id: CheckoutId(id), whole_convoys: id == 5 }).collect()
    }

    /// (number of idle workstations, checkouts that they could take) → requests to the holders, and holders without any.
    #[test]
    fn those_with_the_most_to_spare_are_asked_for_what_idle_workstations_could_take() {
        let holders = || vec![holder("a", 1..3, 1), holder("b", 3..5, 7), holder("c", 5..6, 3)];
        let all: Vec<i64> = (1..6).collect();
        for (idle, takes, expected, barren) in [
            (1, &all[..], "b[3, 4]", ""),
            (2, &all[..], "b[3, 4] c[5]", ""),
            (9, &all[..], "b[3, 4] c[5] a[1, 2]", ""),
            (9, &[2, 5], "c[5] a[2]", "b"),
            // A holder without a returnable problem takes no other holder's place.
            (1, &[2, 5], "c[5]", "b"),
            (9, &[], "", "bca"),
        ] {
            let Plan { requests, barren: without } = plan(candidates(holders()), &returnable(takes), idle);
            let without: String = without.iter().map(|holder| holder.who).collect();
            let asked: Vec<String> = requests
                .into_iter()
                .map(|(Holder { who, .. }, request)| {
                    assert!(request.checkouts.iter().all(|one| one.whole_convoys == (one.checkout_id == 5)));
                    let ids: Vec<i64> = request.checkouts.iter().map(|one| one.checkout_id).collect();
                    format!("{who}{ids:?}")
                })
                .collect();
            assert_eq!((asked.join(" ").as_str(), without.as_str()), (expected, barren), "{idle}, {takes:?}");
        }
    }

    #[test]
    fn holders_without_a_returnable_problem_let_others_have_their_turn() {
        let now = Instant::now();
        let mut looked = [None; 41];
        for look in 0..3 {
            let holder = |(who, looked_at): (usize, &Option<Instant>)| Holder {
                who,
                checkouts: vec![CheckoutId(i64::try_from(who).expect("small"))],
                surplus: if who == 40 { 1 } else { 1000 },
                looked_at: *looked_at,
            };
            let considered = candidates(looked.iter().enumerate().map(holder).collect());
            let Plan { requests, barren } = plan(considered, &returnable(&[40]), 1);
            if requests.iter().any(|(holder, _)| holder.who == 40) {
                return;
            }
            barren.into_iter().for_each(|holder| looked[holder.who] = Some(now + LOOK * look));
        }
        panic!("it never has its turn");
    }

    #[test]
    fn what_is_asked_at_a_time_is_bounded() {
        let many = (0..100).map(|_| holder("a", 0..1000, 9)).collect();
        assert_eq!(candidates(many).len(), ASKED_LIMIT);
        for (surplus, workstations, problems) in
            [(9, 2, 1000), (10_000, 2, 5000), (10_000, 11, 9091), (usize::MAX, 2, 10_000), (0, 0, 1000)]
        {
            assert_eq!(share(surplus, workstations), problems, "{surplus} problems, {workstations} workstations");
        }
    }

    #[test]
    fn idle_workstations_share_what_a_holder_can_spare() {
        for (idle, expected) in [(1, vec![5000]), (2, vec![5000, 4000]), (4, vec![6667, 5334])] {
            let holders = vec![holder("a", 1..2, 10_000), holder("b", 2..3, 8000)];
            let requests = plan(candidates(holders), &returnable(&[1, 2]), idle).requests;
            let asked: Vec<u32> = requests.iter().map(|(_, request)| request.problems).collect();
            assert_eq!(asked, expected, "{idle} idle");
        }
    }
}
