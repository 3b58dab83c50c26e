use super::*;
use proptest::prelude::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn definition(recurrence: &str, catch_up: CatchUp) -> Definition {
    Definition {
        series: Series {
            recurrence: Recurrence::parse(recurrence, "UTC").expect("a recurrence"),
            starts_at: None,
            anchored_at: at("2026-01-01T00:00:00Z"),
            ends_at: None,
        },
        catch_up,
        catch_up_limit: 1000,
        jitter_ms: 0,
        seed: 7,
    }
}

fn seconds(plan: &Plan) -> (Vec<i64>, Option<i64>) {
    let base = at("2026-01-01T00:00:00Z").as_second();
    (plan.triggers.iter().map(|t| t.as_second() - base).collect(), plan.due.map(|due| due.as_second() - base))
}

#[test]
fn what_is_due_is_triggered_and_what_was_missed_by_policy() {
    // Due each 10 s; known due time, now, what is triggered, what comes next.
    type Case<'a> = (CatchUp, Option<i64>, i64, &'a [i64], i64);
    let now = |s: i64| at("2026-01-01T00:00:00Z").checked_add(SignedDuration::from_secs(s)).expect("a time");
    let cases: &[Case<'_>] = &[
        (CatchUp::Once, None, 3, &[], 10),
        (CatchUp::Once, None, 12, &[10], 20),
        (CatchUp::Once, Some(10), 9, &[], 10),
        (CatchUp::Once, Some(10), 10, &[10], 20),
        (CatchUp::Once, Some(10), 47, &[40], 50),
        (CatchUp::Once, Some(10), 100_003, &[100_000], 100_010),
        (CatchUp::Skip, Some(10), 11, &[10], 20),
        (CatchUp::Skip, Some(10), 47, &[40], 50),
        (CatchUp::All, Some(10), 47, &[10, 20, 30, 40], 50),
    ];
    for (catch_up, due, at, triggers, next) in cases {
        let plan = definition("every 10s", *catch_up).plan(due.map(now), &Done::default(), now(*at));
        assert_eq!(seconds(&plan), (triggers.to_vec(), Some(*next)), "{catch_up:?} {due:?} {at}");
    }
}

#[test]
fn what_is_skipped_was_late_by_more_than_a_minute() {
    let due = at("2026-01-02T00:00:00Z");
    for (now, triggers) in [("2026-01-02T00:00:59Z", 1), ("2026-01-02T00:01:01Z", 0)] {
        let plan = definition("@daily", CatchUp::Skip).plan(Some(due), &Done::default(), at(now));
        assert_eq!((plan.triggers.len(), plan.due), (triggers, Some(at("2026-01-03T00:00:00Z"))), "{now}");
    }
}

#[test]
fn catching_up_with_all_goes_in_portions_and_has_a_limit() {
    let all = Definition { catch_up_limit: 250, ..definition("every 10s", CatchUp::All) };
    let now = at("2026-01-05T00:00:00Z");
    let mut due = Some(at("2026-01-01T00:00:10Z"));
    let mut sizes = Vec::new();
    let mut triggers = Vec::new();
    loop {
        let plan = all.plan(due, &Done::default(), now);
        if plan.triggers.is_empty() {
            break;
        }
        sizes.push(plan.triggers.len());
        triggers.extend(plan.triggers);
        due = plan.due;
    }
    assert_eq!(sizes, [100, 100, 50]);
    assert_eq!(triggers.last(), Some(&now));
    assert!(triggers.windows(2).all(|two| two[1].duration_since(two[0]) == SignedDuration::from_secs(10)));
    let rare = Definition { catch_up_limit: 3, ..definition("0 3 * * mon", CatchUp::All) };
    let plan = rare.plan(Some(at("2026-01-05T03:00:00Z")), &Done::default(), at("2026-07-01T00:00:00Z"));
    assert_eq!(plan.triggers, [at("2026-06-15T03:00:00Z"), at("2026-06-22T03:00:00Z"), at("2026-06-29T03:00:00Z")]);
}

#[test]
fn jitter_delays_and_is_the_same_for_everybody() {
    let jittered = Definition { jitter_ms: 5_000, ..definition("every 10s", CatchUp::Once) };
    let due = at("2026-01-01T00:00:10Z");
    let wake = jittered.wake(due);
    assert_eq!(wake, jittered.clone().wake(due));
    assert!(wake >= due && wake <= at("2026-01-01T00:00:15Z"));
    let before = wake.checked_sub(SignedDuration::from_millis(1)).expect("a time");
    assert_eq!(jittered.plan(Some(due), &Done::default(), before).triggers, []);
    let plan = jittered.plan(Some(due), &Done::default(), wake);
    assert_eq!(plan.triggers, [due]);
    assert_eq!(plan.wake, Some(jittered.wake(at("2026-01-01T00:00:20Z"))));
    let other = Definition { seed: 8, ..jittered.clone() };
    assert!((0..20).any(|n| {
        let due = due.checked_add(SignedDuration::from_secs(10 * n)).expect("a time");
        other.wake(due) != jittered.wake(due)
    }));
}

#[test]
fn what_never_comes_is_refused() {
    let now = at("2026-06-01T00:00:00Z");
    let cases = [
        ("0 0 30 2 *", None, 0, "there is no such date"),
        ("once 2026-05-31T00:00", None, 0, "in the past"),
        ("0 3 * * *", Some("2026-06-01T02:00:00Z"), 0, "after its end"),
        ("every 5s", None, 5_000, "jitter"),
        ("0 3 * * *", None, 86_400_000, "jitter"),
    ];
    for (recurrence, ends_at, jitter_ms, expected) in cases {
        let mut definition = Definition { jitter_ms, ..definition(recurrence, CatchUp::Once) };
        definition.series.ends_at = ends_at.map(at);
        definition.series.anchored_at = now;
        let wrong = definition.check(recurrence, now).expect_err(recurrence).to_string();
        assert!(wrong.contains(expected), "{wrong}");
    }
    for recurrence in ["0 0 29 2 *", "once 2026-06-02T00:00", "every 520 weeks"] {
        assert_eq!(definition(recurrence, CatchUp::Once).check(recurrence, now), Ok(()), "{recurrence}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// However late ticks come: with `all` no due time is lost, and none comes twice; the others trigger some of those.
    #[test]
    fn due_times_are_triggered_once_in_order(
        every in 1_i64..100, jitter_share in 0_u64..90, delays in prop::collection::vec(0_i64..500, 1..30),
        policy in prop_oneof![Just(CatchUp::Skip), Just(CatchUp::Once), Just(CatchUp::All)],
    ) {
        let jitter_ms = every.unsigned_abs() * 1000 * jitter_share / 100;
        let definition = Definition { jitter_ms, catch_up_limit: 100_000, ..definition(&format!("every {every}s"), policy) };
        let mut now = at("2026-01-01T00:00:00Z");
        let mut due = None;
        let mut triggered = Vec::new();
        for delay in delays {
            now = now.checked_add(SignedDuration::from_secs(delay)).expect("a time");
            loop {
                let plan = definition.plan(due, &Done::default(), now);
                let more = policy == CatchUp::All && !plan.triggers.is_empty();
                prop_assert!(plan.triggers.iter().all(|due| definition.wake(*due) <= now));
                triggered.extend(plan.triggers);
                due = plan.due;
                if !more {
                    break;
                }
            }
            prop_assert!(due.is_some_and(|due| definition.wake(due) > now));
        }
        prop_assert!(triggered.windows(2).all(|two| two[0] < two[1]));
        let expected: Vec<Timestamp> =
            definition.series.times(at("2026-01-01T00:00:00Z"), 20_000).into_iter().take_while(|due| definition.wake(*due) <= now).collect();
        if policy == CatchUp::All {
            prop_assert_eq!(triggered, expected);
        } else {
            prop_assert!(triggered.iter().all(|due| expected.contains(due)));
        }
    }
}

#[test]
fn a_time_of_a_clock_that_was_ahead_gives_way_to_the_next_due_time() {
    // Daily at midnight; now is noon of the first day. Due time, wake time, due times triggered early, expected times.
    type Case<'a> = (Option<&'a str>, &'a str, &'a [&'a str], Option<(Option<&'a str>, &'a str)>);
    let now = "2026-01-01T12:00:00Z";
    let cases: &[Case<'_>] = &[
        (Some("2026-01-02T00:00:00Z"), "2026-01-02T00:00:00Z", &[], None),
        // Three years ahead.
        (
            Some("2029-01-02T00:00:00Z"),
            "2029-01-02T00:00:00Z",
            &[],
            Some((Some("2026-01-02T00:00:00Z"), "2026-01-02T00:00:00Z")),
        ),
        // Only the time of looking is wrong.
        (
            Some("2026-01-02T00:00:00Z"),
            "2029-01-02T00:00:00Z",
            &[],
            Some((Some("2026-01-02T00:00:00Z"), "2026-01-02T00:00:00Z")),
        ),
        // Due already, but the ticker would not look.
        (Some("2026-01-01T00:00:00Z"), "2029-01-01T00:00:00Z", &[], Some((Some("2026-01-01T00:00:00Z"), now))),
        // Without a due time, the ticker computes one now.
        (None, "2029-01-01T00:00:00Z", &[], Some((None, now))),
        (None, now, &[], None),
        // The clock was a day ahead for a moment. A time that was triggered then is not triggered again.
        (Some("2026-01-03T00:00:00Z"), "2026-01-03T00:00:00Z", &["2026-01-02T00:00:00Z"], None),
        (
            Some("2029-01-03T00:00:00Z"),
            "2029-01-03T00:00:00Z",
            &["2026-01-02T00:00:00Z"],
            Some((Some("2026-01-03T00:00:00Z"), "2026-01-03T00:00:00Z")),
        ),
    ];
    let definition = definition("@daily", CatchUp::Once);
    for (due, wake, triggered, expected) in cases {
        let triggered: Vec<Timestamp> = triggered.iter().map(|text| at(text)).collect();
        let found = definition.sooner(due.map(at), at(wake), at(now), &triggered);
        assert_eq!(found, expected.map(|(due, wake)| (due.map(at), at(wake))), "{due:?} {wake}");
    }
}

/// The clock was behind for a while, and wrote a due time that has been triggered before, or from before the schedule was made.
#[test]
fn a_due_time_that_was_triggered_is_not_triggered_again() {
    let hour = |hour: &str| at(&format!("2026-03-01T{hour}:00Z"));
    for catch_up in [CatchUp::Skip, CatchUp::Once, CatchUp::All] {
        let hourly = definition("0 * * * *", catch_up);
        // Due time, last due time, now, due times that are triggered, next due time.
        type Case<'a> = (&'a str, Option<&'a str>, &'a str, &'a [&'a str], &'a str);
        let cases: &[Case<'_>] = &[
            ("10:00", Some("12:00"), "12:10", &[], "13:00"),
            ("12:00", Some("12:00"), "12:10", &[], "13:00"),
            ("10:00", Some("12:00"), "13:00", &["13:00"], "14:00"),
            // The clock is behind, or was ahead: the last due time says nothing.
            ("10:00", Some("12:00"), "10:00", &["10:00"], "11:00"),
            ("13:00", Some("12:00"), "13:00", &["13:00"], "14:00"),
        ];
        for (due, last, now, triggers, next) in cases {
            let done = Done { last: last.map(hour), early: Vec::new() };
            let plan = hourly.plan(Some(hour(due)), &done, hour(now));
            let expected: Vec<Timestamp> = triggers.iter().map(|due| hour(due)).collect();
            assert_eq!((plan.triggers, plan.due), (expected, Some(hour(next))), "{catch_up:?} {due} {last:?} {now}");
        }
    }
}

/// At 11:50 the clock was ahead for seconds, and due times of the afternoon were triggered.
#[test]
fn due_times_that_a_clock_that_was_ahead_triggered_are_passed_over() {
    let hour = |hour: &str| at(&format!("2026-03-01T{hour}:00Z"));
    for catch_up in [CatchUp::Skip, CatchUp::Once, CatchUp::All] {
        let hourly = definition("0 * * * *", catch_up);
        let mut done = Done { last: Some(hour("15:00")), early: vec![hour("14:00"), hour("15:00")] };
        let mut due = Some(hour("12:00"));
        let mut triggered = Vec::new();
        for minute in 0..=300 {
            let now = hour("11:51").checked_add(SignedDuration::from_mins(minute)).expect("a time");
            let plan = hourly.plan(due, &done, now);
            done.last = plan.triggers.last().copied().or(done.last);
            triggered.extend(plan.triggers);
            due = plan.due;
        }
        assert_eq!(triggered, [hour("12:00"), hour("13:00"), hour("16:00")], "{catch_up:?}");
        assert_eq!(due, Some(hour("17:00")));
    }
    // No server ticked until the due times triggered early were over. Those before them were missed.
    let all = definition("0 * * * *", CatchUp::All);
    let done = Done { last: Some(hour("14:00")), early: vec![hour("14:00")] };
    let plan = all.plan(Some(hour("12:00")), &done, hour("15:10"));
    assert_eq!(plan.triggers, [hour("12:00"), hour("13:00"), hour("15:00")]);
}
