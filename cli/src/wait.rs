//! `pcfarm job wait`: looks at a job until it has ended, through restarts of the server.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::Job;

use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::jobs;
use crate::output::Output;
use crate::text::{self, cut, number};

const FIRST_LOOK: Duration = Duration::from_millis(100);
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// A server that is restarted is back by then; a night should not end because of it.
const SERVER_MAY_BE_AWAY: Duration = Duration::from_secs(120);

/// The rate is that of the last minute: convoys come back in bursts.
const RATE_WINDOW: Duration = Duration::from_secs(60);

pub async fn wait(farm: &Farm, id: JobId, output: Output) -> Result<Exit> {
    let deadline = farm.timeout().map(|limit| Instant::now() + limit);
    let bar = progress();
    let mut rate = Rate::default();
    let mut pause = FIRST_LOOK;
    let mut job = jobs::get(farm, id).await?;
    let mut heard = Instant::now();
    while !has_ended(&job.state) {
        rate.note(Instant::now(), ended(&job));
        show(&bar, &job, &rate);
        let mut sleep = pause;
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bar.finish_and_clear();
                return Err(Failure::of(Exit::TimedOut, still_going(&job)));
            }
            sleep = sleep.min(left);
        }
        tokio::time::sleep(sleep).await;
        pause = (pause * 2).min(BETWEEN_LOOKS);
        match jobs::get(farm, id).await {
            Ok(seen) => {
                job = seen;
                heard = Instant::now();
            }
            Err(error) if may_come_back(&error) && heard.elapsed() < SERVER_MAY_BE_AWAY => {
                bar.set_message(format!("{} does not answer; asking again", farm.server()));
            }
            Err(error) => {
                bar.finish_and_clear();
                return Err(error);
            }
        }
    }
    bar.finish_and_clear();
    output.print(|| jobs::json(&job), || jobs::line(&job))?;
    Ok(exit(&job))
}

fn has_ended(state: &str) -> bool {
    matches!(state, "done" | "failed" | "cancelled")
}

/// The job's end as an exit code.
fn exit(job: &Job) -> Exit {
    match job.state.as_str() {
        "cancelled" => Exit::Failed,
        _ if job.failed > 0 || job.state == "failed" => Exit::ProblemsFailed,
        _ => Exit::Done,
    }
}

fn may_come_back(error: &anyhow::Error) -> bool {
    let failure = error.downcast_ref::<Failure>();
    failure.is_some_and(|failure| matches!(failure.exit, Exit::NotReachable | Exit::TimedOut))
}

fn ended(job: &Job) -> i64 {
    job.done.saturating_add(job.failed).saturating_add(job.cancelled)
}

fn still_going(job: &Job) -> String {
    format!(
        "{} after --timeout; {} of {} problems have ended",
        jobs::line(job),
        number(ended(job)),
        number(job.problems)
    )
}

fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}").expect("the template above is valid");
    ProgressBar::new(0).with_style(style)
}

fn show(bar: &ProgressBar, job: &Job, rate: &Rate) {
    bar.set_length(job.problems.unsigned_abs());
    bar.set_position(ended(job).unsigned_abs());
    bar.set_message(message(job, rate));
}

/// What stands beside the bar: `1,200 of 5,000, 40 in progress, 20/s, 3 min left`.
fn message(job: &Job, rate: &Rate) -> String {
    let mut parts = vec![format!("{} of {}", number(ended(job)), number(job.problems))];
    if job.failed > 0 {
        parts.push(format!("{} failed", number(job.failed)));
    }
    if job.state != "open" {
        parts.push(format!("{}: {}", cut(&job.state, 12), cut(&job.reason, 60)));
        return parts.join(", ");
    }
    if job.in_progress > 0 {
        parts.push(format!("{} in progress", number(job.in_progress)));
    }
    match rate.per_second() {
        Some(per_second) if per_second > 0.0 => {
            parts.push(per_second_text(per_second));
            let left = job.problems.saturating_sub(ended(job)).max(0) as f64 / per_second;
            if let Ok(left) = Duration::try_from_secs_f64(left) {
                parts.push(format!("{} left", text::duration(Duration::from_secs(left.as_secs()))));
            }
        }
        _ if !job.reason.is_empty() => parts.push(cut(&job.reason, 60)),
        _ => {}
    }
    parts.join(", ")
}

/// `1,234/s`, and with a digit more where the number is small.
pub fn per_second_text(per_second: f64) -> String {
    if per_second >= 10.0 { format!("{}/s", number(per_second as i64)) } else { format!("{per_second:.1}/s") }
}

/// How fast problems ended within the last [`RATE_WINDOW`].
#[derive(Default)]
struct Rate {
    seen: VecDeque<(Instant, i64)>,
}

impl Rate {
    fn note(&mut self, now: Instant, ended: i64) {
        self.seen.push_back((now, ended));
        // One look older than the window stays: it is where the window begins.
        while self.seen.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= RATE_WINDOW) {
            self.seen.pop_front();
        }
    }

    fn per_second(&self) -> Option<f64> {
        let (start, first) = self.seen.front()?;
        let (end, last) = self.seen.back()?;
        let seconds = end.duration_since(*start).as_secs_f64();
        // A retried job goes back: then there is no rate to tell.
        (seconds >= 1.0 && last >= first).then(|| (last - first) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: &str, done: i64, failed: i64) -> Job {
        Job { state: state.into(), done, failed, problems: 100, ..Job::default() }
    }

    #[test]
    fn a_job_ends_as_an_exit_code() {
        let cases = [
            (job("done", 100, 0), Exit::Done),
            (job("done", 90, 10), Exit::ProblemsFailed),
            (job("failed", 90, 10), Exit::ProblemsFailed),
            (job("failed", 0, 0), Exit::ProblemsFailed),
            (job("cancelled", 5, 1), Exit::Failed),
        ];
        for (job, expected) in cases {
            assert_eq!(exit(&job), expected, "{job:?}");
        }
        assert!(!has_ended("held") && !has_ended("open") && !has_ended("loading"));
    }

    #[test]
    fn the_rate_is_that_of_the_window() {
        let start = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(), None);
        for second in 0..=200_i64 {
            // Slow for a hundred seconds, then ten times as fast.
            let ended = if second <= 100 { second } else { 100 + (second - 100) * 10 };
            rate.note(start + Duration::from_secs(second.unsigned_abs()), ended);
        }
        assert_eq!(rate.per_second(), Some(10.0));
        assert!(rate.seen.len() <= 62);
        let told = message(&Job { in_progress: 5, ..job("open", 40, 10) }, &rate);
        assert_eq!(told, "50 of 100, 10 failed, 5 in progress, 10/s, 5 s left");
    }

    #[test]
    fn a_held_job_says_why() {
        let held = Job { reason: "by hand".into(), ..job("held", 1, 0) };
        assert_eq!(message(&held, &Rate::default()), "1 of 100, held: by hand");
    }
}
