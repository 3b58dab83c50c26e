//! What alerts say to people.

use serde_json::Value;
use std::fmt::Write;
use std::time::SystemTime;

/// Longer names are cut in subjects.
const NAME_LIMIT: usize = 60;

/// What a kind of alert is called by programs.
pub fn kind(what: &str) -> String {
    match what.split_once("workstation_") {
        Some(("", news)) => format!("workstation.{news}"),
        _ if what == "digest" => what.to_owned(),
        _ => format!("job.{what}"),
    }
}

/// RFC 3339 in UTC, to the second.
pub fn time(moment: SystemTime) -> String {
    let seconds = jiff::Timestamp::try_from(moment).and_then(|moment| jiff::Timestamp::from_second(moment.as_second()));
    seconds.map_or_else(|_| "unknown".to_owned(), |moment| moment.to_string())
}

pub fn subject(what: &str, body: &Value) -> String {
    if what == "digest" {
        let jobs = body["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        let sum = |field: &str| number(jobs.iter().map(|of_type| of_type[field].as_i64().unwrap_or(0)).sum());
        return format!("[PC Farm] digest: {} jobs done, {} failed", sum("done"), sum("failed"));
    }
    if what.starts_with("workstation_") {
        return format!("[PC Farm] {}", of_workstations(what, body));
    }
    let counts = format!("{} of {} problems", count(body, "failed"), count(body, "problems"));
    let news = match what {
        "done" => format!("done: {} problems", count(body, "done")),
        "failed" => format!("failed: {counts}"),
        "cancelled" => "was cancelled".to_owned(),
        "late" => format!("is late: {} of {} problems are done", count(body, "done"), count(body, "problems")),
        "failures" => format!("has failures: {counts}"),
        other => other.to_owned(),
    };
    let name: String = text(body, "name").chars().take(NAME_LIMIT).collect();
    format!("[PC Farm] job {} ({name}) {news}", text(body, "job_id"))
}

/// The text of a mail.
pub fn mail(what: &str, body: &Value, happened_at: SystemTime) -> String {
    match what {
        "digest" => digest(body),
        _ if what.starts_with("workstation_") => workstations(what, body, happened_at),
        _ => of_job(what, body, happened_at),
    }
}

fn of_workstations(what: &str, body: &Value) -> String {
    let several = format!("{} workstations", count(body, "count"));
    match what {
        "workstation_cloned" => {
            let host: String = text(body, "hostname").chars().take(NAME_LIMIT).collect();
            format!("an identity is used on two machines ({host})")
        }
        "workstation_cannot_tell" => format!("{several} cannot tell for a day whether a person is present"),
        "workstation_without_work" => {
            format!("{several} have not worked on {} days on which they could have", count(body, "days"))
        }
        other => other.to_owned(),
    }
}

fn workstations(what: &str, body: &Value, happened_at: SystemTime) -> String {
    let mut lines = format!("PC Farm: {}.\n\n", of_workstations(what, body));
    let fields = [
        ("workstation", text(body, "hostname")),
        ("copy", text(body, "copy")),
        ("copied from", text(body, "cloned_from")),
        ("outcome", text(body, "outcome")),
        ("told", time(happened_at)),
    ];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(lines, "{name:<12} {value}");
    }
    let named = |one: &Value| format!("{} (workstation {})", text(one, "hostname"), text(one, "workstation_id"));
    section_of(&mut lines, rows(body, "workstations", named));
    let _ = write!(lines, "\nTo look further:\n\n    pcfarm events --what workstation\n    pcfarm workstations\n");
    lines
}

fn of_job(what: &str, body: &Value, happened_at: SystemTime) -> String {
    let id = text(body, "job_id");
    let news = match what {
        "done" => "is done: every problem of it is done",
        "failed" => "has ended, and not all of its problems are done",
        "cancelled" => "was cancelled",
        "late" => "has missed its deadline",
        "failures" => "has as many failed problems as you asked to be told of",
        other => other,
    };
    let mut lines = format!("Job {id} ({}) {news}.\n\n", text(body, "name"));
    let fields = [
        ("title", text(body, "title")),
        ("job type", text(body, "job_type")),
        ("owner", text(body, "owner")),
        ("state", text(body, "state")),
        ("problems", count(body, "problems")),
        ("done", count(body, "done")),
        ("failed", count(body, "failed")),
        ("created", moment(body, "created_at")),
        ("deadline", moment(body, "deadline")),
        ("ended", moment(body, "ended_at")),
        ("told", time(happened_at)),
    ];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(lines, "{name:<10} {value}"); // a String takes everything
    }
    let _ = write!(lines, "\nTo look further:\n\n    pcfarm job show {id}\n");
    if body["failed"].as_i64().unwrap_or(0) > 0 {
        let _ = writeln!(lines, "    pcfarm problems {id} --state failed");
    }
    if body["ended_at"].is_null() {
        let _ = writeln!(lines, "    pcfarm explain job {id}");
    }
    lines
}

fn digest(body: &Value) -> String {
    let mut lines = format!("From {} to {}\n\nJobs that ended\n", moment(body, "since"), moment(body, "until"));
    let jobs = rows(body, "jobs", |job| {
        format!(
            "{}: {} done, {} failed, {} cancelled; {} problems done, {} failed",
            text(job, "job_type"),
            count(job, "done"),
            count(job, "failed"),
            count(job, "cancelled"),
            count(job, "problems_done"),
            count(job, "problems_failed")
        )
    });
    section(&mut lines, jobs);
    let _ = writeln!(lines, "\nDeadlines missed: {}", count(body, "late"));
    section_of(
        &mut lines,
        rows(body, "late_jobs", |job| {
            format!("job {} ({}), {}", text(job, "job_id"), text(job, "name"), text(job, "state"))
        }),
    );
    let _ = writeln!(
        lines,
        "\nWorkstations: {} died, {} came back, {} are dead now",
        count(body, "workstations_died"),
        count(body, "workstations_back"),
        count(body, "workstations_dead")
    );
    section_of(&mut lines, rows(body, "dead", plain));
    let _ = writeln!(
        lines,
        "    {} copied identities, {} cannot tell whether a person is present, {} have not worked for long",
        count(body, "workstations_cloned"),
        count(body, "workstations_cannot_tell"),
        count(body, "workstations_without_work")
    );
    let _ = writeln!(lines, "\nSettings changed");
    let settings = rows(body, "settings", |change| {
        let subjects: Vec<String> = change["subjects"].as_array().into_iter().flatten().map(plain).collect();
        let times = match change["times"].as_i64() {
            Some(times @ 2..) => format!(" ({} times)", number(times)),
            _ => String::new(),
        };
        let made = format!("{} by {}{times}: {}", text(change, "what"), text(change, "who"), subjects.join(", "));
        made.trim_end_matches([':', ' ']).to_owned()
    });
    section(&mut lines, settings);
    let _ = writeln!(
        lines,
        "\nAlerts not delivered: {} given up, {} are tried again\n    pcfarm alerts list --undelivered",
        count(body, "alerts_given_up"),
        count(body, "alerts_waiting")
    );
    lines
}

fn rows(body: &Value, field: &str, line: impl Fn(&Value) -> String) -> Vec<String> {
    body[field].as_array().into_iter().flatten().map(line).collect()
}

fn section(lines: &mut String, rows: Vec<String>) {
    section_of(lines, if rows.is_empty() { vec!["none".to_owned()] } else { rows });
}

fn section_of(lines: &mut String, rows: Vec<String>) {
    for row in rows {
        let _ = writeln!(lines, "    {row}");
    }
}

/// Names are written by others: a line of theirs must not look like a line or a header of ours.
fn plain(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn text(body: &Value, field: &str) -> String {
    plain(&body[field])
}

/// A time as the database writes it, to the second, in UTC.
fn moment(body: &Value, field: &str) -> String {
    let text = text(body, field);
    let parsed =
        text.parse::<jiff::Timestamp>().ok().and_then(|moment| jiff::Timestamp::from_second(moment.as_second()).ok());
    parsed.map_or(text, |moment| moment.to_string())
}

fn count(body: &Value, field: &str) -> String {
    number(body[field].as_i64().unwrap_or(0))
}

/// 1234567 as 1,234,567.
fn number(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = if value < 0 { "-".to_owned() } else { String::new() };
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn subjects_say_what_happened() {
        let body = json!({"job_id": "12", "name": "nightly\r\nBcc: x", "problems": 10_000, "done": 9_997, "failed": 3});
        let cases = [
            ("failed", "failed: 3 of 10,000 problems"),
            ("done", "done: 9,997 problems"),
            ("cancelled", "was cancelled"),
            ("late", "is late: 9,997 of 10,000 problems are done"),
            ("failures", "has failures: 3 of 10,000 problems"),
        ];
        for (what, news) in cases {
            assert_eq!(subject(what, &body), format!("[PC Farm] job 12 (nightly  Bcc: x) {news}"));
        }
        let digest = json!({"jobs": [{"done": 1_200, "failed": 1}, {"done": 3, "failed": 0}]});
        assert_eq!(subject("digest", &digest), "[PC Farm] digest: 1,203 jobs done, 1 failed");
    }

    #[test]
    fn mails_say_how_to_look_further() {
        let body = json!({"job_id": "12", "name": "n", "failed": 3, "problems": 4, "ended_at": "2027-01-01T05:00:00Z"});
        let text = mail("failed", &body, SystemTime::UNIX_EPOCH);
        for part in
            ["Job 12 (n) has ended", "\nfailed     3\n", "pcfarm job show 12", "pcfarm problems 12 --state failed"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("explain"), "{text}");
        let late = mail("late", &json!({"job_id": "7", "name": "n"}), SystemTime::UNIX_EPOCH);
        assert!(late.contains("pcfarm explain job 7"), "{late}");
    }

    #[test]
    fn digests_have_every_part() {
        let body = json!({"since": "2027-01-01T06:00:00.123456+01:00", "until": "b", "late": 1, "late_jobs": [{"job_id": "5", "name": "x", "state": "open"}],
            "jobs": [{"job_type": "emsr", "done": 2, "failed": 1, "cancelled": 0, "problems_done": 5_000, "problems_failed": 7}],
            "workstations_died": 2, "workstations_back": 1, "workstations_dead": 1, "dead": ["pc7"],
            "settings": [{"who": "ops", "what": "user changed", "times": 2, "subjects": ["ann", "ben"]}],
            "alerts_given_up": 1, "alerts_waiting": 0});
        let text = mail("digest", &body, SystemTime::UNIX_EPOCH);
        for part in [
            "emsr: 2 done, 1 failed, 0 cancelled; 5,000 problems done, 7 failed",
            "Deadlines missed: 1\n    job 5 (x), open",
            "2 died, 1 came back, 1 are dead now\n    pc7",
            "user changed by ops (2 times): ann, ben",
            "1 given up",
            "From 2027-01-01T05:00:00Z to b\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let empty = mail("digest", &json!({"jobs": []}), SystemTime::UNIX_EPOCH);
        assert!(empty.contains("Jobs that ended\n    none"), "{empty}");
    }
}
