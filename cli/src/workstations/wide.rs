//! Everything of every workstation, where the usual table says at most what differs and fits.
//!
//! Owns how that is laid out: one line each where there is room for it, else its reason below it, else all of it below its name.
//! Nothing is left away.

use pcfarm_proto::v1::Workstation;

use super::{ASIDES, ago, narrow, shown_state, speed, why};
use crate::output::{self, Column};
use crate::text::cut;

/// Of the table's columns beside its reason, each with a cell by workstation.
type Columns = Vec<(Column, Vec<String>)>;

/// A reason is longer only by what others write, which nobody reads to its end.
const REASON_LIMIT: usize = 160;

pub fn wide(workstations: &[Workstation], none: &str, width: usize, now: jiff::Timestamp) -> String {
    if workstations.is_empty() {
        return none.to_owned();
    }
    let columns = columns(workstations, now);
    let reasons: Vec<String> = workstations.iter().map(|one| cut(&why(one), REASON_LIMIT)).collect();
    if output::has_room_in(width, &columns, &[]) {
        return drawn(columns, Some(reasons), width);
    }
    let lines = drawn(columns, None, usize::from(u16::MAX));
    if lines.lines().any(|line| line.chars().count() > width) {
        return workstations.iter().map(|one| narrow(one, width, now)).collect();
    }
    let mut lines = lines.lines();
    let heading = lines.next().unwrap_or_default();
    let below = lines.zip(&reasons).map(|(line, reason)| format!("{line}\n{}", output::wrapped(reason, "    ", width)));
    format!("{heading}\n{}", below.collect::<String>())
}

fn columns(workstations: &[Workstation], now: jiff::Timestamp) -> Columns {
    let of_all = |value: &dyn Fn(&Workstation) -> String| workstations.iter().map(value).collect::<Vec<_>>();
    let mut columns = vec![
        (Column::Number("ID"), of_all(&|one| one.workstation_id.to_string())),
        (Column::Text("HOST"), of_all(&|one| cut(&one.hostname, 24))),
        (Column::Text("STATE"), of_all(&|one| shown_state(one).to_owned())),
        (Column::Text("SINCE"), of_all(&|one| ago(one.since.as_ref(), now))),
        (Column::Number("SPEED"), of_all(&|one| speed(one.speed.as_ref()))),
    ];
    columns.extend(ASIDES.map(|(heading, _, value)| (Column::Text(heading), of_all(&value))));
    columns
}

fn drawn(mut columns: Columns, reasons: Option<Vec<String>>, width: usize) -> String {
    columns.extend(reasons.map(|reasons| (Column::Reason("REASON"), reasons)));
    let headings: Vec<Column> = columns.iter().map(|column| column.0).collect();
    let rows = columns[0].1.len();
    let row = |row: usize| columns.iter().map(|column| column.1[row].clone()).collect();
    output::table_in(width, &headings, (0..rows).map(row).collect(), "")
}

#[cfg(test)]
mod tests {
    use pcfarm_proto::v1::{WorkstationSpeed, WorkstationState, Yields};

    use super::*;

    /// No two are the same in anything.
    fn fleet() -> Vec<Workstation> {
        let one = |id: i64, host: &str, state: WorkstationState, reason: &str| Workstation {
            workstation_id: id,
            hostname: host.to_owned(),
            state: state.into(),
            reason: reason.to_owned(),
            ..Workstation::default()
        };
        let person = "its person is here, or left less than 5 min ago (x11 of user 1000, wayland of user 1001)";
        let speed = WorkstationSpeed { problems_per_second: 12_345.0, ..WorkstationSpeed::default() };
        vec![
            Workstation {
                idle_source: "evdev, tty".to_owned(),
                power: "mains".to_owned(),
                agent_version: "0.1.0".to_owned(),
                yields: Some(Yields { p50_ms: 38, p99_ms: 440, count: 9 }),
                ..one(7, "lab-7", WorkstationState::Suspended, person)
            },
            Workstation {
                idle_source: "unattended".to_owned(),
                power: "battery".to_owned(),
                agent_version: "0.2.0".to_owned(),
                speed: Some(speed),
                ..one(117, "laptop-of-dean", WorkstationState::Processing, "crunches what it holds")
            },
        ]
    }

    #[test]
    fn nothing_is_hidden_at_any_width() {
        let said =
            ["evdev, tty", "mains", "battery", "0.1.0", "0.2.0", "38/440 ms", "12,345/s", "unattended", "crunches"];
        for width in [40, 80, 100, 120, 200, 1000] {
            let text = wide(&fleet(), "none", width, jiff::Timestamp::UNIX_EPOCH);
            let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for expected in said.iter().chain(&["suspended", "processing", "lab-7", "laptop-of-dean"]) {
                assert!(flat.contains(expected), "{expected} at {width}:\n{text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
        assert_eq!(wide(&[], "none", 100, jiff::Timestamp::UNIX_EPOCH), "none");
    }

    #[test]
    fn a_line_each_where_there_is_room_and_else_its_reason_below() {
        let at = |width| wide(&fleet(), "none", width, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(at(250).lines().count(), 3, "{}", at(250));
        let below = at(100);
        let lines: Vec<&str> = below.lines().collect();
        assert!(
            lines[0].starts_with(" ID") && lines[1].starts_with("  7") && lines[2].starts_with("    its person"),
            "{below}"
        );
        assert!(at(50).starts_with("7 lab-7 suspended"), "{}", at(50));
    }
}
