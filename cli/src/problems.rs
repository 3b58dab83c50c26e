//! `pcfarm problems`: the problems of a job, page by page.

use anyhow::Result;
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::{ListProblemsRequest, ProblemStatus};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::args::{ProblemState, ProblemsArgs};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::cut;

/// Small enough that a page of large payloads is still a message.
const PAGE: u32 = 100;

pub async fn list(farm: &Farm, args: &ProblemsArgs, output: Output) -> Result<()> {
    let problems = get_all(farm, args).await?;
    if problems.len() >= args.limit as usize {
        output::note(&format!("only the first {}: --limit shows more", args.limit));
    }
    output.print(|| ProblemsJson { problems: problems.iter().map(json).collect() }, || table(&problems, args.job))
}

async fn get_all(farm: &Farm, args: &ProblemsArgs) -> Result<Vec<ProblemStatus>> {
    let mut problems: Vec<ProblemStatus> = Vec::new();
    while problems.len() < args.limit as usize {
        let request = ListProblemsRequest {
            job_id: args.job.0,
            state: args.state.map_or("", state_name).to_owned(),
            key: args.key.clone().unwrap_or_default(),
            limit: PAGE.min(args.limit - problems.len() as u32),
            after_problem_id: problems.last().map_or(0, |problem| problem.problem_id),
        };
        let mut client = farm.jobs();
        let call = client.list_problems(farm.request(request));
        let page = farm.call(&format!("listing problems of job {}", args.job), call).await?;
        if page.problems.is_empty() {
            break;
        }
        problems.extend(page.problems);
    }
    Ok(problems)
}

fn state_name(state: ProblemState) -> &'static str {
    match state {
        ProblemState::Waiting => "waiting",
        ProblemState::InProgress => "in_progress",
        ProblemState::Done => "done",
        ProblemState::Failed => "failed",
        ProblemState::Cancelled => "cancelled",
    }
}

fn table(problems: &[ProblemStatus], job: JobId) -> String {
    let columns = [
        Column::Number("PROBLEM"),
        Column::Text("KEY"),
        Column::Text("STATE"),
        Column::Number("ATTEMPTS"),
        Column::Number("WORKSTATION"),
        Column::Reason("MESSAGE"),
    ];
    let rows = problems
        .iter()
        .map(|problem| {
            vec![
                problem.problem_id.to_string(),
                cut(&problem.key, 32),
                cut(&problem.state, 12).replace('_', " "),
                problem.attempts.to_string(),
                output::id(problem.workstation_id).unwrap_or_else(|| "–".to_owned()),
                cut(&problem.message, 160),
            ]
        })
        .collect();
    output::table(&columns, rows, &format!("job {job} has no such problems"))
}

#[derive(Serialize)]
struct ProblemsJson<'a> {
    problems: Vec<ProblemJson<'a>>,
}

#[derive(Serialize)]
struct ProblemJson<'a> {
    job_id: Option<String>,
    problem_id: Option<String>,
    key: &'a str,
    job_type: &'a str,
    state: &'a str,
    attempts: u32,
    message: &'a str,
    checkout_id: Option<String>,
    workstation_id: Option<String>,
    payload: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
}

fn json(problem: &ProblemStatus) -> ProblemJson<'_> {
    ProblemJson {
        job_id: output::id(problem.job_id),
        problem_id: output::id(problem.problem_id),
        key: &problem.key,
        job_type: &problem.job_type,
        state: &problem.state,
        attempts: problem.attempts,
        message: &problem.message,
        checkout_id: output::id(problem.checkout_id),
        workstation_id: output::id(problem.workstation_id),
        payload: output::raw(&problem.payload),
        result: output::raw(&problem.result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_and_json_keeps_the_payload() -> Result<()> {
        let problem = ProblemStatus {
            problem_id: i64::MAX,
            key: "k\u{1b}".repeat(200),
            state: "in_progress".into(),
            attempts: u32::MAX,
            workstation_id: i64::MAX,
            message: "panicked at\n".repeat(200),
            payload: br#"{"a": 1.10}"#.as_slice().into(),
            ..ProblemStatus::default()
        };
        for line in table(std::slice::from_ref(&problem), JobId(1)).lines() {
            assert!(line.chars().count() <= usize::from(output::WIDTH), "{line}");
        }
        let text = serde_json::to_string(&json(&problem))?;
        assert!(text.contains(r#""payload":{"a": 1.10},"result":null"#), "{text}");
        Ok(())
    }
}
