//! Table `replicas`: how many triggers a second can be sustained, with one to five servers on one database.

use super::schedules::{AT_ONCE_MS, EVERY_SECONDS, Load, SPREAD_MS, measure};
use crate::context::Context;
use crate::report::{Figures, Report};
use crate::schedules::Due;
use anyhow::ensure;

/// Schedules, each five seconds.
const LADDER: [u64; 7] = [40_000, 70_000, 100_000, 150_000, 200_000, 250_000, 300_000];
const QUICK_LADDER: [u64; 2] = [500, 1_000];

/// The step that one server begins with.
const FIRST: usize = 3;

/// Of each step.
const SECONDS: u64 = 20;

const SERVERS: [usize; 4] = [1, 2, 3, 5];
const BYTES_EACH: u64 = 500;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let ladder: &[u64] = if context.quick { &QUICK_LADDER } else { &LADDER };
    let most = ladder[ladder.len() - 1];
    context.need_disk(2 * BYTES_EACH * most * SECONDS / EVERY_SECONDS.unsigned_abs(), "replicas")?;
    report.note(format!(
        "schedules of {EVERY_SECONDS} s, {ladder:?} of them, {SECONDS} s each: the last step whose triggers all come once, in most \
         seconds 99 % within {SPREAD_MS} ms (spread evenly over the {EVERY_SECONDS} s) or {AT_ONCE_MS} ms (all due at the same \
         instants): a second that the machine stands still makes 5 % of a step's triggers late, whoever is to blame. PostgreSQL and \
         the servers share the machine. More servers begin where fewer ended, and go up or down from there"
    ));
    report.note("as `schedules`: each trigger enqueues one problem into one standing job; nobody solves them");
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        for (name, due, bound) in [("spread", Due::Spread, SPREAD_MS), ("at_once", Due::AtOnce, AT_ONCE_MS)] {
            let mut held = FIRST; // steps, from the lowest
            for servers in SERVERS {
                held = climb(context, report, (ladder, held), (due, bound, servers)).await?;
                let rate = held.checked_sub(1).map_or(0.0, |k| ladder[k] as f64 / EVERY_SECONDS as f64);
                figures.add(format!("{name}_{servers}_servers_per_second"), rate);
            }
        }
        report.run(figures);
    }
    Ok(())
}

/// How many steps of the ladder are held, beginning with the one that was held before.
async fn climb(
    context: &Context,
    report: &mut Report,
    (ladder, before): (&[u64], usize),
    (due, bound, servers): (Due, f64, usize),
) -> anyhow::Result<usize> {
    let (mut step, mut held, mut first) = (before.clamp(1, ladder.len()), 0, None);
    while (1..=ladder.len()).contains(&step) {
        let count = ladder[step - 1];
        let taken = measure(context, Load { count, due, seconds: SECONDS, servers, kill: false }).await?;
        report.processed(taken.account.triggers as u64);
        context.progress(&format!("{servers} servers, {count} schedules, {due:?}: {taken:?}"));
        ensure!(taken.account.lost == 0 && taken.account.doubled == 0, "triggers were lost or doubled");
        let in_time = taken.usual_p99_ms <= bound;
        held = if in_time { step } else { step - 1 };
        if *first.get_or_insert(in_time) != in_time {
            break;
        }
        step = if in_time { step + 1 } else { step - 1 };
    }
    Ok(held)
}
