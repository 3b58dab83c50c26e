use super::*;
use proptest::prelude::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn series(text: &str, zone: &str, anchored_at: &str) -> Series {
    let recurrence = Recurrence::parse(text, zone).expect("a recurrence");
    Series { recurrence, starts_at: None, anchored_at: at(anchored_at), ends_at: None }
}

/// Wall clock times with their offsets.
fn times(series: &Series, after: &str, count: usize) -> Vec<String> {
    let zone = series.recurrence.zone().clone();
    let shown = |time: Timestamp| time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string();
    series.times(at(after), count).into_iter().map(shown).collect()
}

#[test]
fn cron_expressions_come_when_they_say() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("0 3 * * *", "2026-11-22T12:00:00Z", &["2026-11-23 03:00:00 +00:00", "2026-11-24 03:00:00 +00:00"]),
        ("*/10 * * * * *", "2026-11-22T12:00:00.5Z", &["2026-11-22 12:00:10 +00:00", "2026-11-22 12:00:20 +00:00"]),
        (
            "0 9 * jan-mar mon-fri",
            "2026-12-30T00:00:00Z",
            &["2027-01-01 09:00:00 +00:00", "2027-01-04 09:00:00 +00:00"],
        ),
        ("0 0 L * *", "2028-02-01T00:00:00Z", &["2028-02-29 00:00:00 +00:00", "2028-03-31 00:00:00 +00:00"]),
        ("30 8 * * fri#2", "2026-11-01T00:00:00Z", &["2026-11-13 08:30:00 +00:00", "2026-12-11 08:30:00 +00:00"]),
        ("30 8 * * 5#L", "2026-11-01T00:00:00Z", &["2026-11-27 08:30:00 +00:00", "2026-12-25 08:30:00 +00:00"]),
        ("@daily", "2026-11-22T12:00:00Z", &["2026-11-23 00:00:00 +00:00"]),
        ("@weekly", "2026-11-22T12:00:00Z", &["2026-11-29 00:00:00 +00:00"]),
        ("0 0 29 2 *", "2026-11-22T12:00:00Z", &["2028-02-29 00:00:00 +00:00", "2032-02-29 00:00:00 +00:00"]),
        // Day of month or day of week, as ever.
        ("0 0 13 * fri", "2026-11-07T00:00:00Z", &["2026-11-13 00:00:00 +00:00", "2026-11-20 00:00:00 +00:00"]),
        // Strictly after.
        ("0 12 * * *", "2026-11-22T12:00:00Z", &["2026-11-23 12:00:00 +00:00"]),
    ];
    for (text, after, expected) in cases {
        assert_eq!(times(&series(text, "UTC", after), after, expected.len()), *expected, "{text}");
    }
}

#[test]
fn clocks_that_are_put_forward_or_back() {
    let cases: &[(&str, &str, &str, &[&str])] = &[
        // Skipped: when the skipped hour ends, and the next day as ever.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            &["2026-03-29 03:00:00 +02:00", "2026-03-30 02:30:00 +02:00"],
        ),
        // Repeated: once, the first time.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00:00Z",
            &["2026-10-25 02:30:00 +02:00", "2026-10-26 02:30:00 +01:00"],
        ),
        // More often than daily: as the wall clock shows it.
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:29:00Z",
            &["2026-03-29 01:30:00 +01:00", "2026-03-29 03:00:00 +02:00", "2026-03-29 03:30:00 +02:00"],
        ),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T00:10:00Z",
            &[
                "2026-10-25 02:30:00 +02:00",
                "2026-10-25 02:00:00 +01:00",
                "2026-10-25 02:30:00 +01:00",
                "2026-10-25 03:00:00 +01:00",
            ],
        ),
        // Elapsed time knows no clocks.
        (
            "every 12h",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            &["2026-03-29 01:00:00 +01:00", "2026-03-29 14:00:00 +02:00"],
        ),
        // Days go by them.
        (
            "every day",
            "Europe/Berlin",
            "2026-03-27T01:30:00Z",
            &["2026-03-28 02:30:00 +01:00", "2026-03-29 03:30:00 +02:00", "2026-03-30 02:30:00 +02:00"],
        ),
        (
            "every 2 weeks",
            "America/New_York",
            "2026-10-18T05:30:00Z",
            &["2026-11-01 01:30:00 -04:00", "2026-11-15 01:30:00 -05:00"],
        ),
        ("once 2026-03-29T02:30", "Europe/Berlin", "2026-01-01T00:00:00Z", &["2026-03-29 03:30:00 +02:00"]),
        ("once 2026-10-25 02:30", "Europe/Berlin", "2026-01-01T00:00:00Z", &["2026-10-25 02:30:00 +02:00"]),
        ("once 2026-10-25T02:30:00+01:00", "Europe/Berlin", "2026-01-01T00:00:00Z", &["2026-10-25 02:30:00 +01:00"]),
        // Half an hour forward, on an island.
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T12:00:00Z",
            &["2026-10-04 02:30:00 +11:00", "2026-10-05 02:15:00 +11:00"],
        ),
        // A day that Samoa left out.
        ("0 8 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", &["2012-12-30 08:00:00 +14:00"]),
        (
            "0 8 * * *",
            "Pacific/Apia",
            "2011-12-29T08:00:00Z",
            &["2011-12-29 08:00:00 -10:00", "2011-12-31 08:00:00 +14:00"],
        ),
    ];
    for (text, zone, after, expected) in cases {
        assert_eq!(times(&series(text, zone, after), after, expected.len()), *expected, "{text} in {zone}");
    }
}

#[test]
fn intervals_count_from_their_start() {
    let anchored = series("every 90 seconds", "UTC", "2026-01-01T00:00:00Z");
    assert_eq!(anchored.first(), Some(at("2026-01-01T00:01:30Z")));
    assert_eq!(anchored.after(at("2026-01-01T00:04:29Z")), Some(at("2026-01-01T00:04:30Z")));
    assert_eq!(anchored.after(at("2026-01-01T00:04:30Z")), Some(at("2026-01-01T00:06:00Z")));
    let starting = Series { starts_at: Some(at("2026-01-02T07:00:00Z")), ..anchored };
    assert_eq!(starting.first(), Some(at("2026-01-02T07:00:00Z")));
    let ending = Series { ends_at: Some(at("2026-01-02T07:01:30Z")), ..starting };
    assert_eq!(ending.times(at("2026-01-01T00:00:00Z"), 5).len(), 2);
    let cron =
        Series { starts_at: Some(at("2026-02-01T03:00:00Z")), ..series("0 3 * * *", "UTC", "2026-01-01T00:00:00Z") };
    assert_eq!(cron.first(), Some(at("2026-02-01T03:00:00Z")));
}

#[test]
fn what_is_no_recurrence_is_told() {
    let cases = [
        ("", "UTC", "0 fields"),
        ("0 3 * *", "UTC", "4 fields"),
        ("0 0 3 * * * 2027", "UTC", "7 fields"),
        ("61 3 * * *", "UTC", "no cron expression"),
        ("0 3 * * funday", "UTC", "no cron expression"),
        ("@reboot", "UTC", "no cron expression"),
        (", * * * *", "UTC", "\",\" has a comma with nothing before or behind it"),
        ("* 5, * * * *", "UTC", "a comma with nothing"),
        ("0 3 1,,15 * *", "UTC", "a comma with nothing"),
        ("every 0s", "UTC", "from 1 second"),
        ("every 99999 weeks", "UTC", "10 years"),
        ("every 99999999999999999999s", "UTC", "no interval"),
        ("every 9223372036854775807 weeks", "UTC", "no interval"),
        ("every fortnight", "UTC", "no interval"),
        ("every", "UTC", "no interval"),
        ("every 1 day 2h", "UTC", "go by the calendar"),
        ("once tomorrow", "UTC", "no time"),
        ("0 3 * * *", "Europe/Atlantis", "no time zone"),
    ];
    for (text, zone, expected) in cases {
        let wrong = Recurrence::parse(text, zone).expect_err(text).to_string();
        assert!(wrong.contains(expected), "{text}: {wrong}");
    }
    for text in [
        "every 5s",
        "every 1h30m",
        "every 15 minutes",
        "Every Day",
        "every 2w",
        "@every 10 min",
        "@hourly",
        "0 0 1,15 * ?",
        "30 8 * * fri#L",
        "0 0 15W * *",
        "0 0 1 * +mon",
    ] {
        assert!(Recurrence::parse(text, "Asia/Kathmandu").is_ok(), "{text}");
    }
}

#[test]
fn dates_that_there_are_not_never_come() {
    for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 31 feb *"] {
        assert_eq!(series(text, "Europe/Berlin", "2026-01-01T00:00:00Z").first(), None, "{text}");
    }
}

fn any_recurrence() -> impl Strategy<Value = String> {
    let field = |from: u32, to: u32| {
        prop_oneof![
            Just("*".to_owned()),
            (from..=to).prop_map(|n| n.to_string()),
            (from..=to, from..=to).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
            (2..=(to / 2).max(3)).prop_map(|n| format!("*/{n}")),
        ]
    };
    let cron = (field(0, 59), field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6));
    prop_oneof![
        cron.clone().prop_map(|(s, m, h, d, mo, w)| format!("{s} {m} {h} {d} {mo} {w}")),
        cron.prop_map(|(_, m, h, d, mo, w)| format!("{m} {h} {d} {mo} {w}")),
        (1_u32..200_000).prop_map(|n| format!("every {n}s")),
        (1_u32..40).prop_map(|n| format!("every {n} days")),
    ]
}

fn any_zone() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("UTC"),
        Just("Europe/Berlin"),
        Just("America/New_York"),
        Just("Australia/Lord_Howe"),
        Just("Asia/Kathmandu"),
        Just("America/Sao_Paulo"),
        Just("Pacific/Apia"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Due times go forward, whoever asks from between two of them gets the second, and the latest is one of them.
    #[test]
    fn due_times_are_one_line(text in any_recurrence(), zone in any_zone(), seconds in 1_200_000_000_i64..2_000_000_000, part in 0_u32..1000) {
        let start = Timestamp::new(seconds, 0).expect("a time");
        let recurrence = Recurrence::parse(&text, zone).expect("a recurrence");
        let series = Series { recurrence, starts_at: None, anchored_at: start, ends_at: None };
        let times = series.times(start, 6);
        let mut before = start;
        for due in &times {
            prop_assert!(*due > before, "{} in {}: {} after {}", text, zone, due, before);
            let between = before.checked_add((due.duration_since(before) / 1000) * part as i32).expect("between");
            prop_assert_eq!(series.after(between), Some(*due), "{} in {} from {}", text, zone, between);
            before = *due;
        }
        if let (Some(first), Some(last)) = (times.first(), times.last()) {
            prop_assert_eq!(series.latest(*first, *last), *last, "{} in {}", text, zone);
            let a_bit_later = last.checked_add(SignedDuration::from_millis(1)).expect("a time");
            prop_assert_eq!(series.latest(*first, a_bit_later), *last, "{} in {}", text, zone);
        }
    }

    #[test]
    fn any_text_is_a_recurrence_or_told_why_not(text in ".{0,40}", zone in any_zone()) {
        if let Err(wrong) = Recurrence::parse(&text, zone) {
            prop_assert!(!wrong.to_string().is_empty());
        }
    }
}

mod fuzz {
    use super::*;

    /// A recurrence whose next time is later than now, or what is wrong with it.
    #[test]
    fn a_recurrence() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let now = at("2026-03-29T00:59:59Z");
            match Recurrence::parse(text, "Europe/Berlin") {
                Ok(recurrence) => {
                    let series = Series { recurrence, starts_at: None, anchored_at: now, ends_at: None };
                    assert!(series.after(now).is_none_or(|next| next > now));
                }
                Err(wrong) => assert!(!wrong.to_string().is_empty()),
            }
        });
    }
}
