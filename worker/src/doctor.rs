//! Which step fails, where an agent does not work: asked one after the other, as the agent itself would go.
//!
//! Owns the steps' names, their order, and what to do about each failure. It changes nothing, here or on a server: what it
//! asks a server is made for that ([`Check`](pcfarm_proto::v1::CheckRequest)).
//!
//! - [`reach`]: from a server's name to its answer. [`witness`]: what a server shows, whoever it is.
//! - [`here`]: state of this machine. `programs`: limits of the owner's programs here. [`check`]: runs of their checks under the rules of
//!   the service's [`unit`].

mod check;
mod drop_ins;
pub mod here;
mod programs;
pub mod reach;
mod unit;
pub mod witness;

use std::fmt::Write;

use serde::Serialize;

/// In the order in which they are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    Settings,
    State,
    Service,
    /// Of each server: its name, the way there, its port, TLS, whether the join token is its farm's, and whether it answers.
    Name,
    Route,
    Port,
    Tls,
    Token,
    Answer,
    Credentials,
    Version,
    Clock,
    Presence,
    /// Each GPU.
    Gpu,
    /// Each of the owner's programs.
    Programs,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Step::Settings => "settings",
            Step::State => "state",
            Step::Service => "service",
            Step::Name => "name",
            Step::Route => "route",
            Step::Port => "port",
            Step::Tls => "tls",
            Step::Token => "token",
            Step::Answer => "answer",
            Step::Credentials => "credentials",
            Step::Version => "version",
            Step::Clock => "clock",
            Step::Presence => "presence",
            Step::Gpu => "gpu",
            Step::Programs => "programs",
        }
    }

    /// As everywhere: 1 failed, 2 wrong usage, 3 not reachable, 5 not allowed.
    pub fn exit_code(self) -> u8 {
        match self {
            Step::State | Step::Service | Step::Version | Step::Clock | Step::Presence | Step::Gpu | Step::Programs => {
                1
            }
            Step::Settings => 2,
            Step::Name | Step::Route | Step::Port | Step::Answer => 3,
            Step::Tls | Step::Token | Step::Credentials => 5,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Ok,
    Failed,
    /// It cannot be known, because of what failed before, or does not matter here.
    Skipped,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub step: Step,
    /// Of the steps that each server has.
    pub server: Option<String>,
    pub outcome: Outcome,
    pub says: String,
    /// What to do about it; empty if nothing is.
    pub advice: String,
}

impl Finding {
    pub fn ok(step: Step, says: impl Into<String>) -> Finding {
        Finding { step, server: None, outcome: Outcome::Ok, says: says.into(), advice: String::new() }
    }

    pub fn failed(step: Step, says: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { step, server: None, outcome: Outcome::Failed, says: says.into(), advice: advice.into() }
    }

    pub fn skipped(step: Step, says: impl Into<String>) -> Finding {
        Finding { step, server: None, outcome: Outcome::Skipped, says: says.into(), advice: String::new() }
    }

    pub fn has_failed(&self) -> bool {
        self.outcome == Outcome::Failed
    }
}

/// Everything that was looked at.
#[derive(Debug, Serialize)]
pub struct Report {
    pub ok: bool,
    /// The first step that fails.
    pub failed: Option<Step>,
    pub steps: Vec<Finding>,
}

impl Report {
    pub fn of(steps: Vec<Finding>) -> Report {
        let failed = steps.iter().find(|finding| finding.has_failed()).map(|finding| finding.step);
        Report { ok: failed.is_none(), failed, steps }
    }

    pub fn exit_code(&self) -> u8 {
        self.failed.map_or(0, Step::exit_code)
    }

    pub fn text(&self) -> String {
        let (mut text, mut server) = (String::new(), None);
        for finding in &self.steps {
            if finding.server != server {
                server.clone_from(&finding.server);
                if let Some(server) = &server {
                    let _ = writeln!(text, "{server}");
                }
            }
            let outcome = match finding.outcome {
                Outcome::Ok => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Skipped => "-",
            };
            let _ = writeln!(text, "{outcome:7} {:12} {}", finding.step.name(), finding.says);
            if !finding.advice.is_empty() {
                let _ = writeln!(text, "{:20} → {}", "", finding.advice);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_the_one_that_counts() {
        let fine = vec![Finding::ok(Step::Settings, ""), Finding::skipped(Step::Presence, "unattended")];
        assert_eq!(Report::of(fine).exit_code(), 0);
        let port = Finding::failed(Step::Port, "refused", "start it");
        let report = Report::of(vec![
            Finding::ok(Step::Settings, "a file"),
            Finding { server: Some("https://farm:1".to_owned()), ..port },
            Finding::failed(Step::Presence, "blind", ""),
        ]);
        assert_eq!((report.ok, report.failed, report.exit_code()), (false, Some(Step::Port), 3));
        let expected = "ok      settings     a file\nhttps://farm:1\nFAILED  port         refused\n\
                        \x20                    → start it\nFAILED  presence     blind\n";
        assert_eq!(report.text(), expected);
    }
}
