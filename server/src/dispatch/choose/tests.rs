//! Who comes next, and how fairly.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

fn lane(user: &str, job: i64, lane: i64) -> Candidate {
    Candidate {
        of_type: None,
        job_id: JobId(job),
        lane_id: LaneId(lane),
        user: user.into(),
        job_type: "t".into(),
        controller: "echo".into(),
        requirement: None,
        priority: 0,
        deadline: None,
        late: false,
        urgency: 0,
        came_back: false,
        first: false,
    }
}

/// Of these requirements.
fn meets(met: &[u64]) -> Selection {
    Selection { met: met.iter().map(|id| RequirementId(*id)).collect(), ..slot() }
}

fn slot_that_meets_all() -> Selection {
    meets(&[0, 1, 2])
}

fn slot() -> Selection {
    Selection { controllers: HashSet::from(["echo".to_owned()]), ..Selection::default() }
}

/// Whoever is not named has the defaults.
fn ring(lanes: impl IntoIterator<Item = Candidate>, shares: &[(&str, Share)]) -> Ring {
    let mut ring = Ring::default();
    ring.set_shares(shares.iter().map(|(user, share)| ((Arc::from(*user), None), *share)));
    lanes.into_iter().for_each(|lane| ring.add(lane));
    ring
}

fn allocated(allocation: u32) -> Share {
    Share { allocation, ..Share::default() }
}

/// Who is served in so many turns, each of one convoy.
fn turns(ring: &mut Ring, slot: &Selection, count: usize) -> Vec<(String, i64)> {
    (0..count)
        .filter_map(|_| {
            let choice = ring.choose(slot, |_| true)?;
            ring.charge(&choice, 1);
            Some((choice.candidate.user.to_string(), choice.candidate.job_id.0))
        })
        .collect()
}

fn at(seconds: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[test]
fn priority_then_deadline_then_age() {
    let urgent = Candidate { priority: 5, ..lane("u", 4, 1) };
    let soon = Candidate { deadline: at(10), ..lane("u", 3, 1) };
    let late = Candidate { deadline: at(20), ..lane("u", 2, 1) };
    let mut lanes = [lane("u", 1, 1), late, soon, urgent];
    lanes.sort();
    assert_eq!(lanes.iter().map(|l| l.job_id.0).collect::<Vec<_>>(), [4, 3, 2, 1]);
}

#[test]
fn within_a_job_what_is_urgent_comes_first_and_what_came_back_last_or_first() {
    let retry = Candidate { came_back: true, ..lane("u", 1, 1) };
    let urgent = Candidate { urgency: 3, ..lane("u", 1, 9) };
    let mut lanes = [retry.clone(), lane("u", 1, 3), urgent.clone(), lane("u", 1, 2)];
    lanes.sort();
    assert_eq!(lanes.iter().map(|l| l.lane_id.0).collect::<Vec<_>>(), [9, 2, 3, 1]);
    let mut lanes = [lane("u", 1, 3), urgent, Candidate { first: true, ..retry }];
    lanes.sort();
    assert_eq!(lanes.iter().map(|l| l.lane_id.0).collect::<Vec<_>>(), [9, 1, 3]);
}

#[test]
fn a_late_job_takes_turns_with_the_next_one() {
    let late = Candidate { deadline: at(10), late: true, ..lane("u", 1, 1) };
    let later = Candidate { deadline: at(15), late: true, ..lane("u", 2, 1) };
    let mut ring = ring([late, later, lane("u", 3, 1), lane("u", 4, 1)], &[]);
    let jobs: Vec<i64> = turns(&mut ring, &slot(), 6).iter().map(|(_, job)| *job).collect();
    assert_eq!(jobs, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn what_a_slot_asks_for_is_what_it_gets() {
    let shares = [("ben", allocated(0)), ("eve", Share { prohibited: true, ..Share::default() })];
    let mut ring = ring(["ann", "ben", "eve"].map(|user| lane(user, 1, 1)), &shares);
    let names = |names: &[&str]| names.iter().map(|&name| Arc::from(name)).collect::<HashSet<Arc<str>>>();
    let mut served = |slot: Selection| turns(&mut ring, &slot, 1).pop().map(|(user, _)| user);
    assert_eq!(served(slot()).as_deref(), Some("ann"));
    assert_eq!(served(Selection { excluded: names(&["ann"]), ..slot() }), None);
    // An allocation of none and a prohibition do not apply to those who are required.
    assert_eq!(served(Selection { required: names(&["ben"]), ..slot() }).as_deref(), Some("ben"));
    assert_eq!(served(Selection { required: names(&["eve"]), ..slot() }).as_deref(), Some("eve"));
    // A preference does not lift a prohibition.
    assert_eq!(served(Selection { preferred: names(&["eve"]), ..slot() }).as_deref(), Some("ann"));
    assert_eq!(served(Selection { required: names(&["nobody"]), ..slot() }), None);
    assert_eq!(served(Selection { job_types: names(&["other"]), ..slot() }), None);
    let demanding = Candidate { requirement: Some(RequirementId(3)), ..lane("ann", 7, 7) };
    assert!(!slot().takes(&demanding) && !meets(&[2]).takes(&demanding));
    assert!(meets(&[1, 3]).takes(&demanding) && meets(&[1, 3]).takes(&lane("ann", 7, 7)));
}

#[test]
fn a_preferred_user_goes_before_a_higher_priority() {
    let mut ring = ring([Candidate { priority: 9, ..lane("ann", 1, 1) }, lane("ben", 2, 1)], &[]);
    let prefers = Selection { preferred: HashSet::from(["ben".into()]), ..slot() };
    assert_eq!(turns(&mut ring, &prefers, 1)[0].0, "ben");
    assert_eq!(turns(&mut ring, &slot(), 1)[0].0, "ann");
}

#[test]
fn the_tighter_of_its_types_limits_a_candidate() {
    let candidate = Candidate { of_type: Some("u".into()), ..lane("ann", 1, 1) };
    let weight = |weight| Profile { weight: Some(weight), per_checkout: None };
    let mut rooms = Rooms {
        profiles: [("t".into(), weight(9)), ("u".into(), weight(7))].into(),
        resources: [("t".into(), 4), ("u".into(), 5)].into(),
        user_job_types: [(("ann".into(), Some("u".into())), 6)].into(),
        ..Rooms::default()
    };
    assert_eq!(rooms.of(&candidate), Some(Room { problems: 4, weight: 7 }));
    assert_eq!(rooms.of(&lane("ann", 1, 1)), Some(Room { problems: 4, weight: 9 }));
    assert!(rooms.needs_resources(&candidate));
    rooms.take(&candidate, 3, 6);
    assert_eq!(rooms.of(&candidate), Some(Room { problems: 1, weight: 1 }));
    assert_eq!(rooms.user_job_types[&("ann".into(), Some("u".into()))], 3);
}

/// As when another server was quicker.
#[test]
fn what_comes_to_nothing_changes_nothing() {
    let shares = [("ann", allocated(1)), ("ben", allocated(3))];
    let mut ring = ring([lane("ann", 1, 1), lane("ben", 2, 1)], &shares);
    let mut served = [0, 0];
    for n in 0..400_u32 {
        let choice = ring.choose(&slot(), |_| true).expect("work");
        let convoys = 1 + n % 7;
        ring.charge(&choice, convoys);
        if n % 3 == 0 {
            served[usize::from(&*choice.candidate.user == "ben")] += convoys;
        } else {
            ring.refund(&choice, convoys);
        }
    }
    assert!(served[1].abs_diff(served[0] * 3) <= 21, "{served:?}");
}

#[test]
fn a_large_checkout_is_paid_for_in_the_rounds_that_follow() {
    let mut ring = ring([lane("ann", 1, 1), lane("ben", 2, 1)], &[]);
    let choice = ring.choose(&slot(), |_| true).expect("work");
    ring.charge(&choice, 10);
    let other = if &*choice.candidate.user == "ann" { "ben" } else { "ann" };
    let served = turns(&mut ring, &slot(), 10);
    assert!(served.iter().all(|(user, _)| user == other), "{served:?}");
    let served = turns(&mut ring, &slot(), 10);
    assert_eq!(served.iter().filter(|(user, _)| user == other).count(), 5, "{served:?}");
}

proptest! {
    /// In whole rounds each user has had its allocation, and at no time more than a round away from it.
    #[test]
    fn rounds_are_shared_as_allocated(allocations in prop::collection::vec(1..6_u32, 1..12), rounds in 1..8_usize) {
        let names: Vec<String> = (0..allocations.len()).map(|n| format!("user{n}")).collect();
        let shares: Vec<(&str, Share)> =
            names.iter().map(String::as_str).zip(allocations.iter().map(|&turns| allocated(turns))).collect();
        let mut ring = ring(names.iter().zip(1..).map(|(name, job)| lane(name, job, 1)), &shares);
        let round: u32 = allocations.iter().sum();
        let warm: usize = turns(&mut ring, &slot(), round as usize).len();
        prop_assert_eq!(warm, round as usize);
        let mut had: HashMap<String, u32> = HashMap::new();
        for (user, _) in turns(&mut ring, &slot(), round as usize * rounds) {
            *had.entry(user).or_default() += 1;
        }
        for (name, allocation) in names.iter().zip(&allocations) {
            let due = allocation * rounds as u32;
            prop_assert!(had[name].abs_diff(due) <= *allocation, "{}: {} of {}", name, had[name], due);
        }
    }

    /// Whoever comes late is served within a round, however much the others have.
    #[test]
    fn nobody_waits_longer_than_a_round(
        allocations in prop::collection::vec(1..6_u32, 1..12),
        before in 0..200_usize,
        convoys in 1..40_u32,
    ) {
        let names: Vec<String> = (0..allocations.len()).map(|n| format!("user{n}")).collect();
        let shares: Vec<(&str, Share)> =
            names.iter().map(String::as_str).zip(allocations.iter().map(|&turns| allocated(turns))).collect();
        let mut ring = ring(names.iter().zip(1..).map(|(name, job)| lane(name, job, 1)), &shares);
        for _ in 0..before {
            let choice = ring.choose(&slot(), |_| true).expect("work");
            ring.charge(&choice, convoys);
        }
        ring.add(lane("late", 99, 1));
        let round = allocations.iter().sum::<u32>() as usize + 1;
        prop_assert!(turns(&mut ring, &slot(), round).iter().any(|(user, _)| user == "late"));
    }

    /// With requirements somebody is served what it meets, or nothing: never what it would not be served without them; and
    /// whoever meets all is served as if there were none.
    #[test]
    fn a_requirement_only_keeps_away(
        lanes in prop::collection::vec((0..4_usize, 0..3_i32, prop::option::of(0..3_u64)), 1..20),
        met in prop::collection::btree_set(0..3_u64, 0..4),
    ) {
        let candidates: Vec<Candidate> = lanes
            .iter()
            .zip(1..)
            .map(|((user, priority, requirement), job)| {
                let requirement = requirement.map(RequirementId);
                Candidate { priority: *priority, requirement, ..lane(&format!("user{user}"), job, 1) }
            })
            .collect();
        let met: Vec<u64> = met.into_iter().collect();
        let may = |candidate: &Candidate| candidate.requirement.is_none_or(|id| met.contains(&id.0));
        let chosen = ring(candidates.clone(), &[]).choose(&meets(&met), |_| true).map(|choice| choice.candidate);
        let eligible = candidates.iter().filter(|candidate| may(candidate)).cloned();
        let expected = ring(eligible, &[]).choose(&slot_that_meets_all(), |_| true).map(|choice| choice.candidate);
        prop_assert!(chosen.as_ref().is_none_or(may));
        prop_assert_eq!(chosen, expected);
        let free = candidates.iter().map(|candidate| Candidate { requirement: None, ..candidate.clone() });
        let job = |choice: Choice| choice.candidate.job_id;
        prop_assert_eq!(
            ring(candidates.clone(), &[]).choose(&slot_that_meets_all(), |_| true).map(job),
            ring(free, &[]).choose(&slot(), |_| true).map(job)
        );
    }

    /// Whatever may not run is never chosen, and what may is, if there is any.
    #[test]
    fn limits_are_kept(
        lanes in prop::collection::vec((0..5_usize, 0..3_i32, any::<bool>()), 1..30),
        rooms in prop::collection::vec(prop::option::of(0..3_u64), 5),
    ) {
        let lanes: Vec<(Candidate, bool)> = lanes
            .into_iter()
            .zip(1..)
            .map(|((user, priority, allowed), job)| {
                (Candidate { priority, ..lane(&format!("user{user}"), job, 1) }, allowed)
            })
            .collect();
        let users: Vec<String> = (0..rooms.len()).map(|n| format!("user{n}")).collect();
        let limited = users.iter().zip(&rooms).filter_map(|(user, room)| Some((user.as_str().into(), (*room)?)));
        let limits = Rooms { users: limited.collect(), ..Rooms::default() };
        let ring = ring(lanes.iter().map(|(lane, _)| lane.clone()), &[]);
        let may_run: HashMap<JobId, bool> = lanes.iter().map(|(lane, allowed)| (lane.job_id, *allowed)).collect();
        let user_has_room = |lane: &Candidate| rooms[lane.user[4..].parse::<usize>().expect("a number")] != Some(0);
        let possible: Vec<&Candidate> =
            lanes.iter().filter(|(lane, allowed)| *allowed && user_has_room(lane)).map(|(lane, _)| lane).collect();
        let choice = ring.choose(&slot(), |lane| may_run[&lane.job_id] && limits.of(lane).is_none_or(|room| room.problems > 0));
        prop_assert_eq!(choice.is_some(), !possible.is_empty());
        if let Some(choice) = choice {
            prop_assert!(possible.contains(&&choice.candidate));
            prop_assert_eq!(Some(choice.candidate.priority), possible.iter().map(|lane| lane.priority).max());
        }
    }
}
