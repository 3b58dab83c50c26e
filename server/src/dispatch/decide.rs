//! Who is handed what: for each of those who wait, in turn, so many problems of the lane whose turn it is.

use super::choose::Choice;
use super::convoys::Taken;
use super::queue::Round;
use super::{Dispatcher, size};
use crate::outgoing::Load;
use crate::session::Session;
use crate::traces::path::CheckoutTrace;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::files::announced;
use pcfarm_proto::ids::BatchOrder;
use pcfarm_sql::checkout::HandOut;
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::OpenLane;
use std::sync::Arc;
use std::time::SystemTime;

/// Checkouts that one call commits: many share its cost, and none waits long for the others.
pub const HAND_OUTS_AT_ONCE: usize = 64;

/// Problems that one call commits, unless a single checkout has more: what is read for the next one has to fit in memory.
pub const PROBLEMS_AT_ONCE: usize = 16_000;

/// One checkout that has been decided on but not committed. Its credit is spent.
pub struct Decision {
    pub session: Arc<Session>,
    pub choice: Choice,
    pub lane: Arc<OpenLane>,
    pub taken: Taken,
    pub load: Arc<Load>,
    pub hand_out: HandOut,
    /// It is under a limit.
    pub limited: bool,
    pub trace: Option<Box<CheckoutTrace>>,
}

/// What comes of a session's turn.
enum Turn {
    Served(Box<Decision>),
    /// It asks again when it holds less, or nothing where it has to.
    Full,
    /// What is next in the lane is not for it, as is known now that it has been read: who is next is found out anew.
    Anew,
    /// Nothing can be had from the lane now; it is looked at again with the next look at all lanes.
    NothingThere,
    /// The lane is to be read on, for which what is decided need not wait.
    Unread,
}

/// Checkouts that a workstation has, and those that it has been decided to have.
struct InHand {
    all: usize,
    /// What waits for something else takes no room from it.
    of_its_kind: usize,
    /// Problems for its cores that were decided on and not sent.
    decided: usize,
}

impl Dispatcher {
    /// Checkouts for those who wait, each from the lane whose turn it is; none if there is nothing for anybody.
    pub(super) async fn decide(&mut self) -> anyhow::Result<Vec<Decision>> {
        let mut decisions: Vec<Decision> = Vec::new();
        let (mut problems, mut round) = (0, Round::default());
        while decisions.len() < HAND_OUTS_AT_ONCE && problems < PROBLEMS_AT_ONCE && !self.farm.traffic.is_full() {
            let lanes = &self.lanes;
            let choose = |session: &Session| lanes.choose(session);
            let Some((waiting, choice)) = self.waiting.next(&mut round, lanes.know_resources(), choose) else { break };
            let (key, session) = (choice.lane(), waiting.session.clone());
            match self.decide_for(&session, choice, &decisions).await {
                Ok(Turn::Served(decision)) => {
                    problems += decision.taken.problems.len();
                    // A checkout that must be alone is the last that it gets, and asks for what follows when it is done.
                    if session.wants_work() && !decision.taken.suspect {
                        self.waiting.put_last(session, self.lanes.requirements());
                    } else {
                        self.waiting.leave(&session);
                    }
                    decisions.push(*decision);
                }
                Ok(Turn::Full) => self.waiting.leave(&session),
                Ok(Turn::Anew) => self.waiting.put_back(waiting),
                Ok(Turn::NothingThere) => {
                    self.waiting.put_back(waiting);
                    self.lanes.remove(&self.farm, &key);
                }
                Ok(Turn::Unread) => {
                    self.waiting.put_back(waiting);
                    break;
                }
                Err(error) => {
                    self.waiting.put_back(waiting);
                    return Err(error);
                }
            }
        }
        if round.left_somebody() {
            self.lookout.hurry();
        }
        Ok(decisions)
    }

    /// A checkout for this session, whose turn it is, from the lane whose turn it is.
    async fn decide_for(
        &mut self,
        session: &Arc<Session>,
        choice: Choice,
        decided: &[Decision],
    ) -> anyhow::Result<Turn> {
        if !self.farm.traffic.has_room_for(&session.unread) {
            return Ok(Turn::Full);
        }
        let key = choice.lane();
        let job_type = self.lanes.get_mut(&key).and_then(|lane| self.farm.job_type(&lane.open.job_type));
        let Some(job_type) = job_type else { return Ok(Turn::NothingThere) };
        let in_hand = in_hand(session, &job_type, decided);
        let Some(wanted) = self.wanted(session, &choice, &job_type, &in_hand) else {
            return Ok(Turn::Full);
        };
        if self.lanes.get_mut(&key).is_some_and(|lane| !lane.has_ahead(wanted)) {
            if !decided.is_empty() {
                return Ok(Turn::Unread);
            }
            self.lanes.read_ahead(&key, &mut self.reading, wanted).await?;
            self.farm.rounds.dispatcher.came(); // some lanes, one after the other, may each take as long as a statement may
        }
        let room = self.lanes.room(&choice);
        let Some(lane) = self.lanes.get_mut(&key) else { return Ok(Turn::NothingThere) };
        let largest = session.selection().largest_problem;
        if room.is_some_and(|room| !lane.first_convoy_fits(room))
            || largest.is_some_and(|largest| lane.first_payload() > largest)
        {
            return Ok(Turn::Anew);
        }
        if lane.next_is_suspect() && in_hand.all > 0 {
            return Ok(Turn::Full);
        }
        let (from, open) = (lane.next(), lane.open.clone());
        let Some(taken) = lane.take(wanted, room.map_or(u64::MAX, |room| room.weight), largest.unwrap_or(u64::MAX))
        else {
            return Ok(Turn::NothingThere);
        };
        self.lanes.charge(&choice, &taken);
        self.lanes.remove_if_drained(&self.farm, &key);
        session.spend_credit();
        let hand_out = hand_out(&open, from, &taken, session, &job_type, in_hand.of_its_kind);
        let (trace_parent, token) = (open.trace_parent.as_deref(), hand_out.token);
        Ok(Turn::Served(Box::new(Decision {
            session: session.clone(),
            choice,
            load: self.farm.traffic.load(&session.unread, taken.bytes),
            trace: self.farm.traces.of_checkout(trace_parent, open.job_id, token, SystemTime::now),
            lane: open,
            taken,
            hand_out,
            limited: room.is_some(),
        })))
    }

    /// How many problems this workstation should have of that lane. None: it has no room for more.
    fn wanted(&mut self, session: &Session, choice: &Choice, job_type: &JobType, in_hand: &InHand) -> Option<usize> {
        let remaining = self.lanes.get_mut(&choice.lane())?.remaining();
        let controller = announced(&job_type.controller);
        let (measured, ahead) = session.speed_and_ahead(&job_type.name, controller);
        let situation = size::Situation {
            aim: self.farm.rhythm.checkout,
            limit: self.farm.rhythm.checkout_problems,
            cores: session.cores,
            measured,
            remaining,
            elsewhere: self.lanes.in_sight().saturating_sub(1),
            workstations: self.workstations(choice, controller),
            time_limit: job_type.time_limit,
            ahead: ahead.map(|ahead| ahead.and(in_hand.decided, measured)),
        };
        let wanted = size::wanted(&situation);
        let most = self.lanes.room(choice).and_then(|room| usize::try_from(room.problems).ok());
        let wanted = most.map_or(wanted, |most| wanted.min(most));
        if in_hand.of_its_kind > 0 && !self.lanes.may_be_prefetched(choice) {
            return None;
        }
        size::has_room(&situation, in_hand.of_its_kind, session.prefetch, wanted).then_some(wanted)
    }

    /// How many share what is left of a lane.
    fn workstations(&self, choice: &Choice, controller: &str) -> usize {
        let able = choice.candidate.requirement.and_then(|id| self.able.get(&id).copied());
        // Idle workstations of other servers share the lane, too.
        let here = self.farm.workstations_with(controller).min(able.unwrap_or(usize::MAX));
        here + self.farm.idle_elsewhere.count()
    }
}

fn in_hand(session: &Session, job_type: &JobType, decided: &[Decision]) -> InHand {
    let controller = announced(&job_type.controller);
    let its_own = || decided.iter().filter(|decision| decision.session.workstation_id == session.workstation_id);
    let is_of_its_kind =
        |decision: &&Decision| session.are_counted_together(&decision.choice.candidate.controller, controller);
    let for_cores = |decision: &&Decision| !session.is_apart(&decision.choice.candidate.controller);
    InHand {
        decided: its_own().filter(for_cores).map(|decision| decision.taken.problems.len()).sum(),
        all: session.holds_unfinished() + its_own().count(),
        of_its_kind: session.holds_beside(controller) + its_own().filter(is_of_its_kind).count(),
    }
}

fn hand_out(
    lane: &OpenLane,
    from: BatchOrder,
    taken: &Taken,
    session: &Session,
    job_type: &JobType,
    in_hand: usize,
) -> HandOut {
    let limits = size::time_limits(in_hand, session.prefetch);
    HandOut {
        job_id: lane.job_id,
        lane_id: lane.lane_id,
        job_type: lane.job_type.clone(),
        from,
        to: BatchOrder(taken.to.0 - i64::from(planted(Bug::ShipsMoreThanItChecksOut) && taken.to.0 > from.0 + 1)),
        problems: i32::try_from(taken.problems.len()).expect("a checkout's size is bounded"),
        weight: i64::try_from(taken.weight).unwrap_or(i64::MAX),
        workstation_id: session.workstation_id,
        token: rand::random(),
        seconds: job_type.time_limit.map(|limit| limit.as_secs_f64() * limits as f64),
    }
}
