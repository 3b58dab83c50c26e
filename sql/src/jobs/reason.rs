//! A job's state in words: why it is in it and what comes next. Pure; the facts come from one row.

use super::{Able, Ahead, Job, JobState};

/// One line, for lists.
pub(super) fn of(job: &Job) -> String {
    let id = job.job_id;
    match job.state {
        JobState::Loading if job.problems == 0 => format!(
            "no problems yet: load them with `pcfarm job load FILE --job {id}`, start it with `pcfarm job open {id}`"
        ),
        JobState::Loading => {
            format!("{} loaded: open it with `pcfarm job open {id}`", counted(job.problems, "problem"))
        }
        JobState::Open => late(job, open(job)),
        JobState::Held if job.in_progress > 0 => format!(
            "nothing more is handed out, {} on {} still in progress: `pcfarm job release {id}` goes on",
            counted(job.in_progress, "problem"),
            counted(job.workstations, "workstation")
        ),
        JobState::Held => late(job, format!("nothing is handed out: `pcfarm job release {id}` goes on")),
        JobState::Done if job.problems == 0 => "opened without problems".to_owned(),
        JobState::Done => format!("every problem is done, {} in all", counted(job.problems, "problem")),
        JobState::Failed => format!(
            "{} failed of {}: see `pcfarm problems {id} --state failed`; `pcfarm job retry {id}` tries again",
            counted(job.failed, "problem"),
            job.problems
        ),
        JobState::Cancelled if job.cancelled == 0 => "cancelled by hand".to_owned(),
        JobState::Cancelled => {
            format!("cancelled by hand before {} had a result", counted(job.cancelled, "problem"))
        }
    }
}

fn late(job: &Job, reason: String) -> String {
    if job.late { format!("{reason}; its deadline has passed") } else { reason }
}

fn open(job: &Job) -> String {
    if let Some(time) = &job.starts_at {
        return format!("starts at {time}");
    }
    let mut reason = match (job.in_progress, job.waiting) {
        (0, 0) if job.standing => "empty and standing: waits for problems to be loaded".to_owned(),
        (0, 0) => "every problem has its result: about to end".to_owned(),
        (0, _) => match (job.nowhere.as_slice(), job.obstacles.first()) {
            ([], None) => waits(job),
            ([], Some(obstacle)) => format!("waits: {obstacle}"),
            (nowhere, _) => format!("waits: {}", nowhere.join("; ")),
        },
        (_, 0) => format!("the last {} in progress on {}", job.in_progress, counted(job.workstations, "workstation")),
        (_, _) => format!("in progress on {}", counted(job.workstations, "workstation")),
    };
    if job.failed > 0 {
        reason.push_str(&format!("; {} failed so far", counted(job.failed, "problem")));
    }
    reason
}

/// Nothing of it is in progress, and something waits.
fn waits(job: &Job) -> String {
    let controller = able_controller(job);
    match job.able {
        Able { connected: 0, .. } => {
            format!("waits for a workstation that runs controller {controller}: none is connected")
        }
        Able { working: 0, connected, .. } => format!(
            "waits: of {} for controller {controller}, each is suspended or draining",
            counted(connected, "workstation")
        ),
        Able { idle: 0, working, .. } => format!(
            "waits its turn: {} for controller {controller} busy with other work",
            counted(working, "workstation")
        ),
        Able { .. } => format!("about to be handed out to workstations that run controller {controller}"),
    }
}

/// What a workstation must run and have.
fn able_controller(job: &Job) -> String {
    match job.needs.as_slice() {
        [] => job.controller.clone(),
        needs => format!("{} and has {}", job.controller, needs.join(", ")),
    }
}

/// What would change that nothing could ever run it.
fn nowhere(job: &Job) -> Option<String> {
    if job.state.has_ended() || job.nowhere.is_empty() {
        return None;
    }
    let reasons = job.nowhere.join("; ");
    let id = job.job_id;
    let otherwise = match job.needs.as_slice() {
        [] => String::new(),
        _ => format!(
            ", or with other conditions: `pcfarm job require {id} CONDITION`, `pcfarm types set {} --require CONDITION`",
            job.job_type
        ),
    };
    Some(format!(
        "No workstation that the farm knows, connected or not, could ever run what waits: {reasons}. It runs as soon as one \
         connects that can{otherwise}."
    ))
}

/// Every reason why a job is not running, or not faster, each with what would change that.
pub fn explain(job: &Job, ahead: &Ahead) -> Vec<String> {
    let mut reasons = vec![format!("It is {}: {}.", job.state.as_str(), of(job))];
    reasons.extend(nowhere(job));
    let nothing_moves = job.state.has_ended() || job.state == JobState::Loading;
    if nothing_moves {
        return reasons;
    }
    if job.state == JobState::Held && job.starts_at.is_some() {
        reasons.extend(job.starts_at.iter().map(|time| format!("Released, it would still wait until {time}.")));
    }
    if job.in_progress > 0 {
        let age = ahead.oldest_seconds.unwrap_or(0);
        let next = if job.waiting == 0 {
            "Everything has been handed out: it ends when these are back"
        } else {
            "What workstations hold comes back before they take more"
        };
        reasons.push(format!(
            "{} in progress on {}, the oldest for {}. {next}.",
            counted(job.in_progress, "problem"),
            counted(job.workstations, "workstation"),
            age_of(age)
        ));
    }
    if job.waiting == 0 {
        return reasons;
    }
    let said = if job.in_progress == 0 && job.nowhere.is_empty() { 1 } else { 0 };
    reasons.extend(job.obstacles.iter().skip(said).map(|obstacle| format!("Besides: {obstacle}.")));
    let (controller, able) = (able_controller(job), job.able);
    if able.connected == 0 && job.nowhere.is_empty() {
        reasons.push(format!(
            "No workstation that runs controller {controller} is connected: start an agent that has it. \
             `pcfarm workstations` lists what each runs."
        ));
    } else if able.working < able.connected {
        reasons.push(format!(
            "{} of {} that run controller {controller} suspended or draining: they take work when their \
             people are away, or after `pcfarm undrain WORKSTATION`.",
            able.connected - able.working,
            counted(able.connected, "workstation")
        ));
    }
    if able.working > 0 && able.idle == 0 && job.in_progress == 0 {
        reasons.push(format!(
            "The {} that could take it hold other work: it is next as they finish, or with a higher priority.",
            counted(able.working, "workstation")
        ));
    }
    if let Some(first) = &ahead.first {
        let controller = &job.controller;
        reasons.push(format!(
            "{} for controller {controller} served before it, {first} first: by priority, then deadline, then age.",
            counted(ahead.jobs, "job")
        ));
    }
    reasons
}

/// `1 problem`, `2 problems`.
pub(crate) fn counted(number: i64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}

pub(crate) fn age_of(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200.. => format!("{} h", seconds / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::JobId;
    use std::time::SystemTime;

    fn job(state: JobState) -> Job {
        Job {
            job_id: JobId(7),
            name: "night".into(),
            title: String::new(),
            job_type: "forecast".into(),
            controller: "emsr".into(),
            owner: "ann".into(),
            state,
            priority: 0,
            deadline: None,
            late: false,
            created_at: SystemTime::UNIX_EPOCH,
            opened_at: None,
            ended_at: None,
            starts_at: None,
            standing: false,
            problems: 10,
            done: 0,
            failed: 0,
            in_progress: 0,
            waiting: 10,
            cancelled: 0,
            requeued: 0,
            workstations: 0,
            able: Able::default(),
            obstacles: Vec::new(),
            require: Vec::new(),
            needs: Vec::new(),
            nowhere: Vec::new(),
        }
    }

    #[test]
    fn every_state_says_why_and_what_next() {
        let able = |connected, working, idle| Able { connected, working, idle };
        let cases = [
            (Job { problems: 0, ..job(JobState::Loading) }, "pcfarm job load FILE --job 7"),
            (job(JobState::Loading), "10 problems loaded: open it with `pcfarm job open 7`"),
            (job(JobState::Open), "controller emsr: none is connected"),
            (
                Job { able: able(3, 0, 0), ..job(JobState::Open) },
                "3 workstations for controller emsr, each is suspended",
            ),
            (Job { able: able(3, 2, 0), ..job(JobState::Open) }, "2 workstations for controller emsr busy"),
            (Job { able: able(3, 2, 1), ..job(JobState::Open) }, "about to be handed out"),
            (
                Job { needs: vec!["gpu".into(), "cores >= 4".into()], ..job(JobState::Open) },
                "runs controller emsr and has gpu, cores >= 4: none is connected",
            ),
            (
                Job { nowhere: vec!["no workstation has gpu: none has any".into()], ..job(JobState::Open) },
                "waits: no workstation has gpu: none has any",
            ),
            (Job { starts_at: Some("noon".into()), ..job(JobState::Open) }, "starts at noon"),
            (Job { in_progress: 4, workstations: 1, ..job(JobState::Open) }, "in progress on 1 workstation"),
            (
                Job { in_progress: 4, waiting: 0, workstations: 2, failed: 1, ..job(JobState::Open) },
                "the last 4 in progress on 2 workstations; 1 problem failed so far",
            ),
            (Job { waiting: 0, ..job(JobState::Open) }, "about to end"),
            (Job { waiting: 0, standing: true, ..job(JobState::Open) }, "standing"),
            (Job { late: true, ..job(JobState::Open) }, "its deadline has passed"),
            (job(JobState::Held), "`pcfarm job release 7` goes on"),
            (job(JobState::Done), "10 problems in all"),
            (
                Job { failed: 2, ..job(JobState::Failed) },
                "2 problems failed of 10: see `pcfarm problems 7 --state failed`",
            ),
            (Job { cancelled: 3, ..job(JobState::Cancelled) }, "before 3 problems had a result"),
        ];
        for (job, expected) in cases {
            let reason = job.reason();
            assert!(reason.contains(expected), "{reason} / {expected}");
            assert!(!explain(&job, &Ahead::default()).is_empty());
        }
    }

    #[test]
    fn a_job_that_nothing_could_run_says_so_in_every_state_but_the_last() {
        let why = || vec!["no workstation has gpu: none has any".to_owned()];
        let said =
            "connected or not, could ever run what waits: no workstation has gpu: none has any. It runs as soon as one";
        for (state, says) in [
            (JobState::Loading, true),
            (JobState::Open, true),
            (JobState::Held, true),
            (JobState::Done, false),
            (JobState::Cancelled, false),
        ] {
            let stuck = Job { nowhere: why(), needs: vec!["gpu".into()], ..job(state) };
            let reasons = explain(&stuck, &Ahead::default()).join("\n");
            assert_eq!(reasons.contains(said), says, "{reasons}");
            assert_eq!(reasons.contains("`pcfarm job require 7 CONDITION`"), says, "{reasons}");
            assert!(!reasons.contains("start an agent that has it"), "{reasons}");
        }
    }

    #[test]
    fn a_waiting_job_is_explained_by_what_would_change_it() {
        let waiting = Job { able: Able { connected: 2, working: 1, idle: 0 }, ..job(JobState::Open) };
        let ahead = Ahead { jobs: 1, first: Some("job 3 (a)".into()), oldest_seconds: None };
        let reasons = explain(&waiting, &ahead).join("\n");
        for expected in
            ["1 of 2 workstations", "hold other work", "1 job for controller emsr served before it, job 3 (a)"]
        {
            assert!(reasons.contains(expected), "{reasons}");
        }
    }
}
