//! Table `yields`: how long an agent on a desk, and all that it has started, goes on computing when its person touches a key.
//! Measured from outside, by what the kernel has counted for the whole tree of processes; and what the agent says of it.

use crate::context::Context;
use crate::desk::Tree;
use crate::farm::{Farm, Server};
use crate::program::Program;
use crate::report::{Figures, Report, quantile};
use crate::seat::{Seat, missing};
use crate::spin::calibrate;
use anyhow::Context as _;
use serde_json::json;
use std::io;
use std::time::{Duration, Instant};

/// Without input for so long it begins again.
const AWAY: Duration = Duration::from_secs(1);

/// Longer than any run.
const LONG: Duration = Duration::from_secs(3600);

const PATIENCE: Duration = Duration::from_secs(60);

const BOUND_MS: f64 = 1000.0;

/// Computes in two processes until it is killed.
const PROGRAM: &str = "(while :; do :; done) & while :; do :; done";

/// What computes, and how it ends.
struct Case {
    name: &'static str,
    executable: &'static str,
    controller: &'static str,
    presence: &'static str,
    /// Of one problem; none: it is a program's.
    takes: Option<Duration>,
    /// What its person touches, and the programs without which nobody can.
    seat: fn(&Farm) -> io::Result<Seat>,
    wants: &'static [&'static str],
}

/// Threads with short problems, at an input device.
const SHORT: Case = Case {
    name: "short_problems",
    executable: "spin-agent",
    controller: "spin",
    presence: "",
    takes: Some(Duration::from_millis(20)),
    seat: Seat::keyboard,
    wants: &[],
};

const PROGRAMS: Case =
    Case { name: "programs", executable: "pcfarm-worker", controller: "exec:spin", takes: None, ..SHORT };

const CASES: [Case; 6] = [
    SHORT,
    Case { name: "deaf", takes: Some(LONG), ..SHORT },
    PROGRAMS,
    Case { name: "frozen", presence: "on_return = \"freeze\"", ..PROGRAMS },
    Case { name: "x11", seat: Seat::x11, wants: Seat::X11_WANTS, ..SHORT },
    Case { name: "wayland", seat: Seat::wayland, wants: Seat::WAYLAND_WANTS, ..SHORT },
];

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let times = context.scaled(50, 2);
    report.note(format!(
        "{times} keys each, pressed while both cores compute, on an input device of the benchmark unless a display is named; quiet is \
         when the agent and all that it has started use less than a fifth of a core, by the kernel's own account, looked at every 10 ms"
    ));
    report.note(
        "short_problems: threads, 20 ms each; deaf: threads that never look whether they are wanted, so that the agent \
         replaces its process; programs: two processes by core, ended; frozen: the same, stopped and continued",
    );
    report.note(
        "x11, wayland: as short_problems, with a display that only a helper in its session watches (Xvfb; sway without a screen); from \
         before xdotool or wtype starts, which presses the key, so that these are too long by what that takes",
    );
    let cases: Vec<&Case> = CASES.iter().filter(|case| context.wants(case.name)).collect();
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        for case in cases.iter().filter(|case| missing(case.wants).is_empty()) {
            measure(context, report, &mut figures, case, times).await?;
        }
        report.run(figures);
    }
    for case in cases {
        match missing(case.wants).as_slice() {
            [] => report.promise_always_at_most(&format!("{}_p99_ms", case.name), BOUND_MS),
            missing => report.skip(case.name, format!("{} not installed", missing.join(", "))),
        }
    }
    Ok(())
}

async fn measure(
    context: &Context,
    report: &mut Report,
    figures: &mut Figures,
    case: &Case,
    times: u64,
) -> anyhow::Result<()> {
    let database = context.farm_database().await?;
    {
        let farm = context.farm(&database);
        farm.job_type("spin", case.controller, json!({"max_attempts": 100})).await;
        let rounds = case.takes.map_or(0, calibrate);
        let payload = format!("jsonb_build_object('seed', i, 'rounds', {rounds})");
        let query = format!("select i::text as key, {payload} as payload from generate_series(1, 100000) i");
        farm.submit("spin", &query, 1).await;
        let server = farm.serving("a", &[]).await;
        let mut seat = (case.seat)(&farm)?;
        let agent = agent(&farm, &server, &seat, case)?;
        let mut helper = seat.helper(&farm, &farm.path("agent.state").join("agent.sock"));
        if let Some(helper) = &mut helper {
            helper.start();
        }
        let pid = agent.pid().context("the agent runs")?;
        let mut took = Vec::new();
        for n in 0..times {
            context.progress(&format!("{}: {} of {times}", case.name, n + 1));
            let mut tree = busy(pid, &agent).await?;
            let presses = Instant::now();
            seat.press_a_key()?;
            let pressed = presses.elapsed();
            let quiet = tokio::task::spawn_blocking(move || tree.until_quiet(PATIENCE)).await?;
            took.push((pressed + quiet).as_secs_f64() * 1000.0);
        }
        report.processed(times);
        for (what, at) in [("p50", 0.5), ("p99", 0.99)] {
            figures.add(format!("{}_{what}_ms", case.name), quantile(&took, at).unwrap_or(f64::INFINITY));
        }
        // The farm is told when it works again.
        busy(pid, &agent).await?;
        farm.until(PATIENCE, "select exists (select from pcfarm.workstation where yields is not null)").await;
        let said = farm.number("select max(yield_p99_ms) from pcfarm.workstation").await;
        figures.add(format!("{}_said_p99_ms", case.name), said as f64);
    }
    context.drop_database(database).await
}

fn agent(farm: &Farm, server: &Server, seat: &Seat, case: &Case) -> anyhow::Result<Program> {
    let program = format!(
        "[[program]]\nname = \"spin\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\nargs = [\"-c\", {PROGRAM:?}]\nanswer = \"text\"\n\
         trusted = true"
    );
    let more = if case.takes.is_none() { program.as_str() } else { "" };
    let config = seat.desk.config(AWAY, case.presence, more)?;
    let mut agent = farm
        .program("agent", case.executable)
        .arguments(["--server", &server.url(), "--cores", "2", "--hostname", "desk"])
        .arguments(["--config".as_ref(), config.as_os_str()])
        .arguments(["--state-dir".as_ref(), farm.path("agent.state").as_os_str()])
        .arguments(["--work-dir".as_ref(), farm.path("agent.work").as_os_str()])
        .environment("PCFARM_UNATTENDED", "false");
    agent.start();
    Ok(agent)
}

/// Waits until more than one core's worth computes.
async fn busy(pid: u32, agent: &Program) -> anyhow::Result<Tree> {
    let tree = Tree::that_uses(pid, 1.2, PATIENCE).await;
    tree.with_context(|| format!("the agent does not begin again:\n{}", agent.log()))
}
