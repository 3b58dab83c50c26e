//! Enrolments: a file read in steps, and one line judged.

use crate::file::{Columns, Line, Lines, Refused};
use anyhow::Context;
use pcfarm_worker::{Controller, NewProblem, Problem};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The job type of the problems that a file enqueues.
const ENROLMENT: &str = "enrolment";

/// `enrolment_file`: reads a piece of a file, enqueues each line, and then the next piece. A problem's key is
/// `upload/piece`.
#[derive(Clone, Copy, Debug)]
pub struct EnrolmentFile;

/// What a step leaves to the next one.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Step {
    #[serde(default)]
    columns: Option<Columns>,
    #[serde(default)]
    lines_before: u32,
}

/// A row of the related read `piece`.
#[derive(Debug, Serialize, Deserialize)]
pub struct PieceRow {
    pub first_line: u32,
    pub text: String,
    pub more: bool,
}

/// What a step has read.
#[derive(Debug, Serialize)]
pub struct StepRead {
    upload: i64,
    lines: u32,
    /// Lines that are no enrolments.
    refused: Vec<Refused>,
    /// Known after the last step.
    lines_in_all: Option<u32>,
}

impl Controller for EnrolmentFile {
    const NAME: &'static str = "enrolment_file";
    type Payload = Step;
    type Solution = StepRead;

    fn solve(&self, problem: &Problem<'_, Step>) -> anyhow::Result<StepRead> {
        let (upload, piece) = problem.key().split_once('/').context("the key is not upload/piece")?;
        let (upload, piece): (i64, u32) = (upload.parse()?, piece.parse()?);
        let row: PieceRow = problem.related("piece")?.pop().context("there is no such piece")?;
        let step = problem.payload();
        let mut read = StepRead { upload, lines: 0, refused: Vec::new(), lines_in_all: None };
        let columns = match Lines::new(&row.text, row.first_line, step.columns) {
            Ok(lines) => Some(enqueue_lines(problem, lines, &mut read)?),
            Err(header) => {
                read.refused.push(header);
                read.lines += 1;
                None
            }
        };
        let lines_in_all = step.lines_before + read.lines;
        match columns.filter(|_| row.more) {
            Some(columns) => {
                let next = Step { columns: Some(columns), lines_before: lines_in_all };
                problem.enqueue(NewProblem::new(format!("{upload}/{}", piece + 1), &next)?);
            }
            None => read.lines_in_all = Some(lines_in_all),
        }
        problem.update_info(&json!({"lines_read": lines_in_all, "whole_file_read": read.lines_in_all.is_some()}))?;
        Ok(read)
    }
}

fn enqueue_lines(problem: &Problem<'_, Step>, mut lines: Lines<'_>, read: &mut StepRead) -> anyhow::Result<Columns> {
    for line in lines.by_ref() {
        read.lines += 1;
        match line {
            Ok(line) => problem.enqueue(NewProblem::new(key(read.upload, &line)?, &())?.job_type(ENROLMENT)),
            Err(refused) => read.refused.push(refused),
        }
    }
    Ok(lines.columns)
}

fn key(upload: i64, line: &Line) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&(upload, line.line, &line.person, &line.course))?)
}

/// `enrolment`: judges one line. All of it is in the key, where the related read finds it.
#[derive(Clone, Copy, Debug)]
pub struct Enrolment;

/// A row of the related read `facts`, and of `sql/direct_facts.sql`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Facts {
    pub person_exists: bool,
    pub course_exists: bool,
    pub is_full: bool,
    pub is_enrolled: bool,
}

/// What is written back. A line that is refused has been worked on with success.
#[derive(Debug, Serialize)]
pub struct Judged {
    upload: i64,
    line: u32,
    person: String,
    course: String,
    refused: Option<String>,
}

impl Controller for Enrolment {
    const NAME: &'static str = ENROLMENT;
    type Payload = serde::de::IgnoredAny;
    type Solution = Judged;

    fn solve(&self, problem: &Problem<'_, serde::de::IgnoredAny>) -> anyhow::Result<Judged> {
        let (upload, line, person, course): (i64, u32, String, String) =
            serde_json::from_str(problem.key()).context("the key is not [upload, line, person, course]")?;
        let facts: Facts = problem.related("facts")?.pop().context("nothing was read for it")?;
        let refused = facts.against(&person, &course);
        Ok(Judged { upload, line, person, course, refused })
    }
}

impl Facts {
    /// Why this person cannot be enrolled in this course.
    pub fn against(&self, person: &str, course: &str) -> Option<String> {
        if !self.person_exists {
            Some(format!("there is no person {person}"))
        } else if !self.course_exists {
            Some(format!("there is no course {course}"))
        } else if self.is_enrolled {
            Some(format!("person {person} is enrolled in course {course} already"))
        } else if self.is_full {
            Some(format!("course {course} is full"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_worker::trial::Trial;

    const GOOD: Facts = Facts { person_exists: true, course_exists: true, is_full: false, is_enrolled: false };

    #[test]
    fn a_step_enqueues_its_lines_and_the_next_step() {
        let row = PieceRow { first_line: 1, text: "person,course\nP1,M1\n,M1\nP\"3,M1\n".to_owned(), more: true };
        let solved = Trial::new("7/1")
            .related("piece", Some("7/1"), &row)
            .solve_whole(&EnrolmentFile, &json!({}))
            .expect("read");
        let keys: Vec<&str> = solved.enqueued.iter().map(NewProblem::key).collect();
        assert_eq!(keys, [r#"[7,2,"P1","M1"]"#, r#"[7,4,"P\"3","M1"]"#, "7/2"]);
        let refused = json!([{"line": 3, "refused": "it names no person"}]);
        assert_eq!(solved.solution, json!({"upload": 7, "lines": 3, "refused": refused, "lines_in_all": null}));
        assert_eq!(solved.info, Some(json!({"lines_read": 3, "whole_file_read": false})));

        let next: Step = solved.enqueued[2].payload().expect("a step");
        let row = PieceRow { first_line: 5, text: "P5,M2\n".to_owned(), more: false };
        let last = Trial::new("7/2").related("piece", None, &row).solve_whole(&EnrolmentFile, &next).expect("read");
        assert_eq!(last.enqueued[0].key(), r#"[7,5,"P5","M2"]"#);
        assert_eq!((last.enqueued.len(), &last.solution["lines_in_all"]), (1, &json!(4)));
    }

    #[test]
    fn a_file_without_its_columns_is_refused_as_a_whole() {
        let row = PieceRow { first_line: 1, text: "name\nP1\n".to_owned(), more: true };
        let solved =
            Trial::new("7/1").related("piece", None, &row).solve_whole(&EnrolmentFile, &json!({})).expect("read");
        assert_eq!((solved.enqueued.len(), &solved.solution["lines_in_all"]), (0, &json!(1)));
        assert_eq!(solved.solution["refused"][0]["refused"], "there is no column person in the first line");
    }

    #[test]
    fn a_line_is_judged_by_what_was_read() {
        let cases = [
            (GOOD, json!(null)),
            (Facts { person_exists: false, is_full: true, ..GOOD }, json!("there is no person P1")),
            (Facts { course_exists: false, ..GOOD }, json!("there is no course M1")),
            (Facts { is_full: true, ..GOOD }, json!("course M1 is full")),
            (Facts { is_enrolled: true, is_full: true, ..GOOD }, json!("person P1 is enrolled in course M1 already")),
        ];
        let key = r#"[7,2,"P1","M1"]"#;
        for (facts, refused) in cases {
            let judged = Trial::new(key).related("facts", Some(key), &facts).solve(&Enrolment, &()).expect("judged");
            assert_eq!(judged, json!({"upload": 7, "line": 2, "person": "P1", "course": "M1", "refused": refused}));
        }
        assert!(Trial::new("P1").related("facts", None, &GOOD).solve(&Enrolment, &()).is_err());
    }
}
