use pcfarm_proto::hours::{DAYS, MINUTES_OF_DAY};

use super::*;

fn hours(texts: &[&str]) -> Hours {
    Hours(texts.iter().map(|text| text.parse().expect("hours")).collect())
}

#[test]
fn windows_include_what_they_say() {
    let (mon, fri, sat, sun) = (0, 4, 5, 6);
    for (texts, weekday, time, expected) in [
        (&[][..], mon, (12, 0), true),
        (&["mon-fri 18:00-07:00"], mon, (18, 0), true),
        (&["mon-fri 18:00-07:00"], mon, (17, 59), false),
        // Sunday's night is not the weekdays', Friday's goes on into Saturday.
        (&["mon-fri 18:00-07:00"], mon, (6, 59), false),
        (&["mon-fri 18:00-07:00"], fri, (6, 59), true),
        (&["mon-fri 18:00-07:00"], sat, (6, 59), true),
        (&["mon-fri 18:00-07:00"], sat, (7, 0), false),
        (&["mon-fri 18:00-07:00", "sat,sun"], sat, (12, 0), true),
        (&["sat,sun"], sun, (23, 59), true),
        (&["sat,sun"], mon, (0, 0), false),
        (&["fri-mon"], sun, (3, 0), true),
        (&["22:00-24:00"], sun, (23, 59), true),
        (&["22:00-24:00"], sun, (0, 0), false),
        (&["SAT 9:00-9:00"], sat, (9, 0), true),
        (&["SAT 9:00-9:00"], sun, (8, 59), true),
        (&["SAT 9:00-9:00"], sun, (9, 0), false),
    ] {
        let time = LocalTime { weekday, minute: time.0 * 60 + time.1 };
        assert_eq!(hours(texts).include(time), expected, "{texts:?} {time:?}");
    }
}

#[test]
fn what_is_no_window_is_refused() {
    for text in ["", "mon fri", "18-7", "25:00-26:00", "18:60-19:00", "24:00-1:00", "monday", "1:00-2:00 3:00-4:00"] {
        let refused = text.parse::<Window>().expect_err(text).to_string();
        assert!(refused.starts_with(&format!("{text:?} are no hours")), "{refused}");
    }
}

/// Every example of hours that an owner or an administrator can copy, with the file that has it.
fn documented() -> Vec<(&'static str, Vec<String>)> {
    const LISTS: [(&str, &str); 2] = [
        ("docs/workstations.md", include_str!("../../../../docs/workstations.md")),
        ("deploy/worker.toml", include_str!("../../../../deploy/worker.toml")),
    ];
    const WISHES: [(&str, &str); 3] = [
        ("docs/workstations.md", include_str!("../../../../docs/workstations.md")),
        ("docs/administration.md", include_str!("../../../../docs/administration.md")),
        ("cli/src/args.rs", include_str!("../../../../cli/src/args.rs")),
    ];
    let mut found = Vec::new();
    for (file, text) in LISTS {
        for line in text.lines().filter_map(|line| line.trim_start_matches("# ").strip_prefix("hours = ")) {
            let end = line.find(']').unwrap_or_else(|| panic!("{file}: {line}"));
            let list: toml::Table = toml::from_str(&format!("hours = {}", &line[..=end])).expect(file);
            let list = list["hours"].as_array().expect("a list");
            found.push((file, list.iter().map(|one| one.as_str().expect("a text").to_owned()).collect()));
        }
    }
    for (file, text) in WISHES {
        for wish in text.split("hours=").skip(1) {
            let end = wish.find('\'').unwrap_or_else(|| panic!("{file}: {wish}"));
            found.push((file, wish[..end].split(';').map(|window| window.trim().to_owned()).collect()));
        }
    }
    found
}

/// Minutes of a week that a window covers, counted from the day on which it begins.
fn model(text: &str) -> Vec<usize> {
    let (days, times) = match text.rsplit_once(' ') {
        Some((days, times)) => (days, times),
        None if text.contains(':') => ("mon-sun", text),
        None => (text, "0:00-24:00"),
    };
    let day = |name: &str| DAYS.iter().position(|day| *day == name).expect("a day");
    let minute = |text: &str| {
        let (hour, minute) = text.split_once(':').expect("a time");
        hour.parse::<usize>().expect("an hour") * 60 + minute.parse::<usize>().expect("a minute")
    };
    let (from, to) = times.split_once('-').expect("two times");
    let (from, to) = (minute(from), minute(to));
    let lasts = if to > from { to - from } else { 1440 - from + to };
    let mut minutes = Vec::new();
    for part in days.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        for step in 0..=(day(last) + 7 - day(first)) % 7 {
            let begins = (day(first) + step) * 1440 + from;
            minutes.extend((begins..begins + lasts).map(|minute| minute % 10080));
        }
    }
    minutes
}

#[test]
fn documented_hours_cover_every_night_and_weekend() {
    let documented = documented();
    for file in ["docs/workstations.md", "docs/administration.md", "deploy/worker.toml", "cli/src/args.rs"] {
        assert!(documented.iter().any(|(from, _)| *from == file), "{file} has an example");
    }
    for (file, texts) in documented {
        let hours = hours(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(gaps::gaps(&hours), [], "{file}: {texts:?}");
        let covered: std::collections::HashSet<usize> = texts.iter().flat_map(|text| model(text)).collect();
        for (weekday, day) in DAYS.iter().enumerate() {
            for minute in 0..MINUTES_OF_DAY {
                let included = hours.include(LocalTime { weekday, minute });
                let here = format!("{file}: {texts:?} on {day} at {}:{:02}", minute / 60, minute % 60);
                assert_eq!(included, covered.contains(&(weekday * 1440 + usize::from(minute))), "{here}");
                // All examples promise at least the nights and the weekend.
                let is_promised = weekday >= 5 || !(6 * 60..19 * 60).contains(&minute);
                assert!(included || !is_promised, "{here}");
            }
        }
    }
}

/// Minutes that pass within the hours, in the week that begins on this day.
fn minutes_within(texts: &[&str], zone: &str, monday: &str) -> usize {
    let start: jiff::Zoned = format!("{monday}T00:00[{zone}]").parse().expect("a time");
    let end = start.checked_add(jiff::Span::new().days(7)).expect("a time");
    let covered: std::collections::HashSet<usize> = texts.iter().flat_map(|text| model(text)).collect();
    let (hours, mut now, mut within) = (hours(texts), start, 0);
    while now < end {
        let time = local_time(&now);
        let included = hours.include(time);
        assert_eq!(included, covered.contains(&(time.weekday * 1440 + usize::from(time.minute))), "{texts:?} at {now}");
        within += usize::from(included);
        now = now.checked_add(jiff::Span::new().minutes(1)).expect("a time");
    }
    within
}

#[test]
fn hours_follow_the_clock_on_the_wall_when_it_is_changed() {
    // Clocks change on Sunday, in Santiago at midnight: 0:00 does not exist on 6 September, and 23:00 comes twice on 4 April.
    for (zone, monday, change) in [
        ("Europe/Berlin", "2026-11-23", 0),
        ("Europe/Berlin", "2026-03-23", -60),
        ("Europe/Berlin", "2026-10-19", 60),
        ("America/Santiago", "2026-08-31", -60),
        ("America/Santiago", "2026-03-30", 60),
        ("Australia/Lord_Howe", "2026-09-28", -30),
    ] {
        let within = |texts: &[&str]| minutes_within(texts, zone, monday).cast_signed();
        assert_eq!(within(&["18:00-07:00", "sat,sun"]), 5 * 13 * 60 + 2 * 24 * 60 + change, "{zone} {monday}");
        assert_eq!(within(&["22:00-04:00"]), 7 * 6 * 60 + change, "{zone} {monday}");
        assert_eq!(within(&["9:00-17:00"]), 7 * 8 * 60, "{zone} {monday}");
        assert_eq!(within(&["mon-fri 18:00-07:00"]), 5 * 13 * 60, "{zone} {monday}: Friday's night ends on Saturday");
    }
}
