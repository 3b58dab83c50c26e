use super::*;

const SERVER: ServerId = ServerId(1);
const OTHER: ServerId = ServerId(2);
const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 86_400;
const YEAR: i64 = 365 * DAY;

fn at(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(1_700_000_000 + seconds).expect("after 1970"))
}

/// A look at which nothing is wrong.
fn calm(seconds: i64) -> Observation {
    Observation {
        server: SERVER,
        now: at(seconds),
        checked_at: Some(at(seconds - 5)),
        is_first: false,
        is_next: true,
        step: 0.0,
        difference: 0.0,
        difference_server_runs: true,
        newest: None,
        newest_until_now: None,
    }
}

fn stepped(seconds: i64, step: f64) -> Observation {
    Observation { step, checked_at: Some(at(seconds - step as i64 - 5)), ..calm(seconds) }
}

fn first(seconds: i64, newest: Option<i64>) -> Observation {
    let until_now = newest.filter(|newest| *newest <= seconds).map(at);
    Observation { is_first: true, is_next: false, newest: newest.map(at), newest_until_now: until_now, ..calm(seconds) }
}

fn differs(seconds: i64, difference: f64) -> Observation {
    Observation { difference, ..calm(seconds) }
}

fn after(looks: &[Observation]) -> State {
    looks.iter().fold(State::default(), |state, look| decide(&state, look))
}

#[test]
fn looks_prove_the_clock_or_do_not() {
    let cases: &[(&str, &[Observation], bool)] = &[
        ("nothing wrong", &[first(0, None), calm(5)], true),
        ("a small correction", &[stepped(0, 4.9), stepped(5, -4.9)], true),
        ("a step ahead", &[stepped(0, 5.1)], false),
        ("a step back", &[stepped(0, -5.1)], false),
        ("ten minutes after a step", &[stepped(0, 7200.0), calm(9 * MINUTE)], false),
        ("more than ten minutes after a step", &[stepped(0, 7200.0), calm(10 * MINUTE)], true),
        ("a step ahead and back", &[stepped(7200, 7200.0), stepped(10, -7200.0), calm(9 * MINUTE)], false),
        ("well after a step ahead and back", &[stepped(7200, 7200.0), stepped(10, -7200.0), calm(11 * MINUTE)], true),
        // The step back was not seen: the server had stopped.
        ("a deadline of a clock that was ahead", &[stepped(7200, 7200.0), first(10, Some(5)), calm(9 * MINUTE)], false),
        ("well after it", &[stepped(7200, 7200.0), first(10, Some(5)), calm(11 * MINUTE)], true),
        ("a deadline that ended unwatched", &[stepped(0, 9.0), first(HOUR, Some(HOUR - 5))], false),
        ("clocks a minute apart", &[differs(0, 60.0), differs(5, -60.0)], true),
        ("clocks that differ", &[differs(0, -61.0)], false),
        ("clocks that differ no more", &[differs(0, 61.0), calm(5)], true),
        ("clocks that differ for an hour", &[differs(0, 61.0), differs(59 * MINUTE, 61.0)], false),
        ("clocks that differ for longer", &[differs(0, 61.0), differs(HOUR, 61.0), differs(HOUR + 5, 62.0)], true),
        (
            "clocks that differ more than was tolerated",
            &[differs(0, 61.0), differs(HOUR, 61.0), differs(HOUR + 5, 122.0)],
            false,
        ),
        (
            "another hour after a step while clocks differ",
            &[differs(0, 61.0), Observation { step: 9.0, ..differs(30 * MINUTE, 61.0) }, differs(HOUR + 5, 61.0)],
            false,
        ),
        ("a fresh database", &[first(0, None)], true),
        ("a farm that was off for a night", &[first(0, Some(-DAY + 1))], true),
        ("a farm that was off for a week", &[first(0, Some(-7 * DAY)), calm(59 * MINUTE)], false),
        ("an hour later", &[first(0, Some(-7 * DAY)), calm(HOUR)], true),
        ("a step within that hour", &[first(0, Some(-7 * DAY)), stepped(30 * MINUTE, 9.0), calm(HOUR)], false),
        (
            "another hour after that step",
            &[first(0, Some(-7 * DAY)), stepped(30 * MINUTE, 9.0), calm(90 * MINUTE)],
            true,
        ),
        // By a day or more: rows that were stored before the step lie a day or more away from now.
        ("ten minutes after a step by a year", &[stepped(YEAR, YEAR as f64), calm(YEAR + 11 * MINUTE)], false),
        ("an hour after it", &[stepped(YEAR, YEAR as f64), calm(YEAR + HOUR)], true),
        ("ten minutes after a step back by a day", &[stepped(0, -(DAY as f64)), calm(11 * MINUTE)], false),
        ("an hour after that", &[stepped(0, -(DAY as f64)), calm(HOUR)], true),
        ("stored times of tomorrow", &[first(0, Some(DAY))], false),
        ("stored times of this evening", &[first(0, Some(DAY - 1))], true),
        (
            "stored times of tomorrow, accepted by an hour",
            &[first(0, Some(DAY)), calm(HOUR), first(HOUR + 5, Some(DAY))],
            true,
        ),
        ("stored times of the day after", &[first(0, Some(DAY)), calm(HOUR), first(HOUR + 5, Some(3 * DAY))], false),
    ];
    for (name, looks, is_proven) in cases {
        let state = after(looks);
        assert_eq!(state.is_proven(), *is_proven, "{name}: {state:?}");
    }
}

#[test]
fn a_difference_is_its_own_servers_to_find_gone() {
    let found = after(&[differs(0, 90.0)]);
    let other = Observation { server: OTHER, ..calm(5) };
    assert!(!decide(&found, &other).is_proven());
    assert!(decide(&found, &Observation { difference_server_runs: false, ..other }).is_proven());
    assert!(decide(&found, &calm(5)).is_proven());
}

/// An event about a clock that was ahead lies in the future, and was accepted. Then the farm was off for a week.
#[test]
fn stored_times_in_the_future_do_not_hide_that_the_farm_was_off() {
    let accepted = after(&[first(0, Some(YEAR)), calm(HOUR)]);
    let back = |until_now| Observation { newest_until_now: Some(at(until_now)), ..first(8 * DAY, Some(YEAR)) };
    assert!(decide(&accepted, &back(8 * DAY - HOUR)).is_proven());
    let off = decide(&accepted, &back(DAY));
    assert_eq!((off.is_proven(), off.newest), (false, Some(at(DAY))));
    // The time in the future remains accepted.
    let again = decide(&off, &calm(8 * DAY + HOUR));
    assert!(again.is_proven() && again.accepted_newest == Some(at(YEAR)), "{again:?}");
}

#[test]
fn steps_ahead_move_time_limits_once() {
    /// A look that sees a step, five seconds after the last look of any server.
    fn sees(seconds: i64, step: i64) -> Observation {
        Observation { checked_at: Some(at(seconds - step - 5)), ..stepped(seconds, step as f64) }
    }
    fn again(seconds: i64, step: i64) -> Observation {
        Observation { server: OTHER, checked_at: Some(at(seconds - 2)), ..stepped(seconds, step as f64) }
    }
    let (two, hour) = (2 * HOUR, HOUR);
    #[rustfmt::skip]
    let cases: &[(&str, &[Observation], i64, Option<i64>)] = &[
        ("a step that lasts", &[sees(two, two)], two, Some(0)),
        ("seen by another server", &[sees(two, two), again(two + 2, two)], two, Some(0)),
        ("a small step", &[sees(60, 59)], 0, None),
        ("a step back", &[sees(-two, -two)], 0, None),
        ("a step ahead and back", &[sees(two, two), sees(10, -two)], 0, None),
        ("back by less", &[sees(two, two), sees(hour + 10, -hour)], hour, Some(0)),
        ("back by less, seen twice", &[sees(two, two), sees(hour + 10, -hour), again(hour + 12, -hour)], hour, Some(0)),
        ("back while no server looked", &[sees(two, two), calm(hour)], 0, None),
        ("a second step ahead", &[sees(two, two), sees(two + hour + 100, hour)], two + hour, Some(two + 100)),
        ("a second one after a month", &[sees(two, two), sees(30 * DAY, hour)], hour, Some(30 * DAY - hour)),
        ("a first look", &[first(0, None), calm(5)], 0, None),
    ];
    for (name, looks, seconds, since) in cases {
        let state = after(looks);
        let found = (state.stepped_seconds, state.stepped_at);
        assert_eq!(found, (*seconds as f64, since.map(at)), "{name}");
    }
}

/// The hour of a difference passes whichever server looks, so that a server that hangs cannot hold it up. The server that differs
/// is believed to be wrong from then on.
#[test]
fn a_difference_passes_after_an_hour_of_looks_by_others() {
    let others = |seconds| Observation { server: OTHER, ..calm(seconds) };
    let found = after(&[differs(0, 90.0)]);
    assert!(!decide(&found, &others(HOUR - 5)).is_proven());
    let passed = decide(&found, &others(HOUR));
    assert!(passed.is_proven(), "{passed:?}");
    assert!(decide(&passed, &differs(HOUR + 5, 90.0)).is_proven());
    // A step begins the hour anew.
    let stepped = decide(&found, &Observation { step: -9.0, ..others(30 * MINUTE) });
    assert!(!decide(&stepped, &others(HOUR)).is_proven());
    assert!(decide(&stepped, &others(90 * MINUTE)).is_proven());
}

#[test]
fn slow_answers_are_no_steps() {
    let look = |database: i64, asked: u64, answered: u64| Look {
        database: at(database),
        asked: Duration::from_secs(asked),
        answered: Duration::from_secs(answered),
    };
    let cases: &[(Look, Look, f64)] = &[
        (look(0, 0, 0), look(5, 5, 5), 0.0),
        (look(0, 0, 0), look(7205, 5, 5), 7200.0),
        (look(0, 0, 0), look(-7195, 5, 5), -7200.0),
        // The first answer took half a minute, and may be of any moment of it.
        (look(0, 0, 30), look(5, 35, 35), 0.0),
        (look(0, 0, 30), look(35, 35, 35), 0.0),
        (look(0, 0, 30), look(40, 35, 35), 5.0),
        (look(0, 0, 30), look(0, 35, 35), -5.0),
        // A pause of the server is none of the database's.
        (look(0, 0, 0), look(900, 5, 1000), 0.0),
    ];
    for (before, after, expected) in cases {
        let found = step(before, after);
        assert!((found - expected).abs() < 0.01, "{before:?} {after:?}: {found}");
    }
}

/// A clock that was ahead and came back is not behind, so its times are corrected at once. A clock that is behind takes right times for wrong
/// ones, until it is back, or proven as it is.
#[test]
fn a_clock_is_behind_by_its_steps_since_it_was_proven() {
    /// Another server sees a step that was seen before.
    fn again(seconds: i64, step: i64) -> Observation {
        let other = Observation { server: OTHER, is_next: false, ..stepped(seconds, step as f64) };
        Observation { checked_at: Some(at(seconds - 2)), ..other }
    }
    /// A first look of a server, with the last look of any.
    fn starts(seconds: i64, last_look: Option<i64>, newest: Option<i64>) -> Observation {
        let checked_at = last_look.map(at);
        Observation { checked_at, step: gone_back(checked_at, at(seconds)), ..first(seconds, newest) }
    }
    let (three, back) = (3 * HOUR, |seconds, step: i64| stepped(seconds, -(step as f64)));
    let ahead = |seconds, step: i64| stepped(seconds, step as f64);
    #[rustfmt::skip]
    let cases: &[(&str, &[Observation], bool)] = &[
        ("nothing wrong", &[first(0, None), calm(5)], false),
        ("a correction", &[back(0, 4)], false),
        ("back", &[back(0, three)], true),
        ("back by eight seconds", &[back(0, 8)], true),
        ("back and right again", &[back(-three, three), ahead(15, three)], false),
        ("back and right again, seen by two servers", &[back(-three, three), again(2 - three, -three), ahead(15, three), again(17, three)], false),
        ("right again for one server, which another has not seen yet", &[back(-three, three), ahead(15, three), again(16, -three)], false),
        ("ahead", &[ahead(three, three)], false),
        ("ahead and back", &[ahead(three, three), back(15, three)], false),
        ("ahead and back, seen by two servers", &[ahead(three, three), again(three + 2, three), back(15, three), again(17, -three)], false),
        ("ahead and back by more", &[ahead(three, three), back(15 - three, 2 * three)], true),
        ("ahead twice and back once", &[ahead(three, three), ahead(2 * three, three), back(15, 2 * three)], false),
        ("back and not proven yet", &[back(0, three), calm(9 * MINUTE)], true),
        ("back and proven", &[back(0, three), calm(10 * MINUTE)], false),
        ("back by a day and not proven yet", &[back(0, DAY), calm(59 * MINUTE)], true),
        // A server starts before the machine has the time from the network.
        ("a start in 2000", &[starts(-YEAR, Some(0), Some(-5))], true),
        ("a start in 2000, and the right time", &[starts(-YEAR, Some(0), Some(-5)), ahead(30, YEAR)], false),
        ("a start in 2000, and a start at the right time", &[starts(-YEAR, Some(0), Some(-5)), starts(60, Some(20 - YEAR), Some(0))], false),
        ("a start while the clock is behind", &[back(-three, three), starts(20 - three, Some(15 - three), Some(-5))], true),
        ("a start after seconds by a clock that was ahead", &[ahead(YEAR, YEAR), starts(20, Some(YEAR + 5), Some(YEAR))], false),
        ("a farm that was off", &[starts(DAY, Some(0), Some(0))], false),
        // No server has looked yet, or all stored times are older than a day but for one in the future.
        ("a first start in 2000", &[starts(-YEAR, None, Some(0))], true),
        ("a first start after a clock that was ahead", &[Observation { newest_until_now: Some(at(-5)), ..starts(0, None, Some(YEAR)) }], false),
        ("a look a minute ago", &[starts(0, Some(-60), Some(YEAR))], false),
        ("looks of last year, and a time in the future", &[starts(0, Some(-YEAR), Some(2 * DAY))], true),
    ];
    for (name, looks, expected) in cases {
        let state = after(looks);
        assert_eq!(is_behind(&state), *expected, "{name}: {state:?}");
    }
}

#[test]
fn a_first_look_before_the_last_one_is_a_step_back() {
    assert_eq!(gone_back(None, at(0)), 0.0);
    assert_eq!(gone_back(Some(at(-9)), at(0)), 0.0);
    assert_eq!(gone_back(Some(at(9)), at(0)), -9.0);
    let state = after(&[Observation { step: gone_back(Some(at(9)), at(0)), ..first(0, None) }]);
    assert!(!state.is_proven() && state.step_seconds == Some(-9.0), "{state:?}");
}
