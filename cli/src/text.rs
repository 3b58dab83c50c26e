//! Text for people: what comes from a farm is escaped and cut, numbers and times are made readable.
//!
//! Names, hosts and messages are written by others. Nothing of them reaches a terminal except through
//! [`plain`] or [`cut`].

use std::time::Duration;

pub use pcfarm_intake::text::{bytes, cut, plain};

use prost_types::Timestamp;

/// As [`plain`], but line breaks stay: for messages of several lines.
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain).collect();
    lines.join("\n")
}

/// 1234567 as 1,234,567.
pub fn number(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    if value < 0 {
        out.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 problem`, `2,000 problems`.
pub fn counted(count: i64, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {one}{plural}", number(count))
}

/// A length of time in its largest useful unit: `12 s`, `3 min`, `5 h`, `4 days`.
pub fn duration(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0 if length.as_millis() > 0 => format!("{} ms", length.as_millis()),
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// `3 min ago`, `in 2 h`; clocks differ, so a few seconds either way are `just now`.
pub fn ago(time: Option<&Timestamp>, now: jiff::Timestamp) -> String {
    let Some(time) = time.and_then(instant) else {
        return "never".to_owned();
    };
    let seconds = now.as_second().saturating_sub(time.as_second());
    match seconds {
        -4..=4 => "just now".to_owned(),
        5.. => format!("{} ago", duration(Duration::from_secs(seconds.unsigned_abs()))),
        _ => format!("in {}", duration(Duration::from_secs(seconds.unsigned_abs()))),
    }
}

/// RFC 3339 in UTC; a time that does not exist is none.
pub fn rfc3339(time: Option<&Timestamp>) -> Option<String> {
    time.and_then(instant).map(|time| time.to_string())
}

fn instant(time: &Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::new(time.seconds, time.nanos).ok()
}

/// The share of `part` in `whole`, rounded down so that 100 % means all.
pub fn percent(part: i64, whole: i64) -> String {
    if whole <= 0 {
        return "–".to_owned();
    }
    format!("{} %", i128::from(part) * 100 / i128::from(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_cannot_steer_a_terminal() {
        let cases = [
            ("night", "night"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("two\nlines\r\t", "two\\nlines\\r\\t"),
            ("\u{202e}fdp.exe", "\\u{202e}fdp.exe"),
            ("zero\u{200b}width", "zero\\u{200b}width"),
            ("nul\0", "nul\\u{0}"),
            ("Zürich 東京", "Zürich 東京"),
        ];
        for (hostile, expected) in cases {
            assert_eq!(plain(hostile), expected);
        }
        assert_eq!(plain_lines("one\n\u{1b}two"), "one\n\\u{1b}two");
    }

    #[test]
    fn long_text_is_cut_at_its_limit() {
        assert_eq!(cut("night", 5), "night");
        assert_eq!(cut("nights", 5), "nigh…");
        assert_eq!(cut("\u{1b}\u{1b}\u{1b}", 5), "\\u{1…");
        assert_eq!(cut(&"x".repeat(1 << 20), 3), "xx…");
    }

    #[test]
    fn numbers_have_separators() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (-1_234_567, "-1,234,567"),
            (i64::MIN, "-9,223,372,036,854,775,808"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
        assert_eq!(counted(1, "problem"), "1 problem");
        assert_eq!(counted(0, "problem"), "0 problems");
    }

    #[test]
    fn sizes_and_lengths_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536 << 20), "1.5 GiB");
        assert_eq!(bytes(64 << 30), "64 GiB");
        let cases = [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 days")];
        for (seconds, expected) in cases {
            assert_eq!(duration(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(duration(Duration::from_millis(250)), "250 ms");
    }

    #[test]
    fn times_are_told_from_now() {
        let now = jiff::Timestamp::new(1_000_000, 0).expect("a time");
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        let cases = [
            (1_000_000, "just now"),
            (1_000_003, "just now"),
            (999_820, "3 min ago"),
            (1_007_200, "in 2 h"),
            (i64::MAX, "never"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(ago(Some(&at(seconds)), now), expected);
        }
        assert_eq!(ago(None, now), "never");
        assert_eq!(rfc3339(Some(&at(0))).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(rfc3339(Some(&at(i64::MAX))), None);
    }

    #[test]
    fn all_is_only_said_of_all() {
        assert_eq!(percent(999_999, 1_000_000), "99 %");
        assert_eq!(percent(5, 5), "100 %");
        assert_eq!(percent(0, 0), "–");
        assert_eq!(percent(i64::MAX, i64::MAX), "100 %");
    }
}
