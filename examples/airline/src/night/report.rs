//! What the night comes to: figures for people and for programs.

use super::checks::Check;
use super::farm::{Farm, LEASE};
use super::{Killed, Night};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::Path;

/// Forecasts per flight: ten classes at eleven data-collection points, the published ratio of eleven million
/// forecasts to a hundred thousand flights.
const FORECASTS: usize = 110;

/// The published window for a night of this size.
const TARGET_SECONDS: f64 = 3.0 * 3600.0;
const TARGET_FLIGHTS: f64 = 100_000.0;

/// Direct time over farm time; the promise that the exit code keeps is about correctness, this is a figure.
pub fn efficiency(night: &Night) -> f64 {
    night.direct.took.as_secs_f64() / night.undisturbed.took.as_secs_f64()
}

pub fn all_held(night: &Night) -> bool {
    night.checks.iter().all(|check| check.fault.is_none())
}

/// For people.
pub fn text(night: &Night, farm: &Farm) -> String {
    let title = format!("A night of {} real flights on {} cores", group(night.plan.flights), night.plan.cores);
    let figures = [through_the_farm(night), compared(night), after_the_kill(night), vec![imputed(night)]].concat();
    let parts = [Vec::new(), vec![title], figures, Vec::new(), verdicts(night), Vec::new(), afterwards(night, farm)];
    let mut out = String::new();
    for part in parts {
        match part.is_empty() {
            true => out.push('\n'),
            false => out.extend(part.into_iter().map(|line| line + "\n")),
        }
    }
    out
}

fn through_the_farm(night: &Night) -> Vec<String> {
    let run = &night.undisturbed;
    let rate = night.plan.flights as f64 / run.took.as_secs_f64();
    let segment = &night.by_segment;
    vec![
        format!(
            "  loading                {:>9.2} s   by SQL, in convoys of {}",
            run.loading.as_secs_f64(),
            super::CONVOY
        ),
        format!("  wall time, undisturbed {:>9.1} s", run.took.as_secs_f64()),
        format!("  wall time, one agent killed {:>4.1} s", night.with_kill.took.as_secs_f64()),
        format!("  flights per second     {rate:>9.0}"),
        format!(
            "  forecasts per second   {:>9}   110 a flight (modelled demand, Monte Carlo revenue)",
            group((rate * FORECASTS as f64) as usize)
        ),
        format!(
            "  by segment             {:>9.0}   flights per second, on {} flights",
            segment.problems as f64 / segment.took.as_secs_f64(),
            group(segment.problems.unsigned_abs() as usize)
        ),
    ]
}

fn compared(night: &Night) -> Vec<String> {
    let target = TARGET_SECONDS * night.plan.flights as f64 / TARGET_FLIGHTS;
    vec![
        format!(
            "  wall time, direct      {:>9.1} s   the same controller with rayon, without PC Farm; same build profile ({})",
            night.direct.took.as_secs_f64(),
            profile(&night.plan.programs)
        ),
        format!(
            "  efficiency             {:>9.1} %   direct / farm; {} checkouts",
            100.0 * efficiency(night),
            night.undisturbed.checkouts
        ),
        format!(
            "  target                 {target:>9.0} s   three hours for 100,000 flights on 150 to 200 PCs, as published; here: {:.0} times faster",
            target / night.undisturbed.took.as_secs_f64()
        ),
    ]
}

fn after_the_kill(night: &Night) -> Vec<String> {
    let line = |killed: &Killed| {
        format!(
            "  after SIGKILL          {:>9.1} s   until the {} problems of workstation {} were requeued (lease {} s, default 20 s)",
            killed.requeued_after.as_secs_f64(),
            night.with_kill.requeued,
            killed.workstation_id,
            LEASE.as_secs()
        )
    };
    night.with_kill.killed.iter().map(line).collect()
}

fn imputed(night: &Night) -> String {
    format!(
        "  seats                  {:>9}   of {} are imputed; fares and booking curves are modelled, seed {}",
        group(night.import.imputed()),
        group(night.import.flights),
        super::SEED
    )
}

fn verdicts(night: &Night) -> Vec<String> {
    let line = |check: &Check| match &check.fault {
        None => format!("  ok      {}", check.name),
        Some(fault) => format!("  BROKEN  {}: {fault}", check.name),
    };
    night.checks.iter().map(line).collect()
}

fn afterwards(night: &Night, farm: &Farm) -> Vec<String> {
    if !night.plan.keep {
        return vec![
            "The results were in airline.revenue_modelled and airline.forecast, and are gone with the demo's database;"
                .to_owned(),
            "scripts/demo --keep leaves the farm running to look at them.".to_owned(),
        ];
    }
    vec![
        "The farm is still running. Look around:".to_owned(),
        format!("  {} --server {} status", night.plan.programs.join("pcfarm").display(), farm.server_url()),
        format!("  psql '{}'", farm.database_url()),
        "    select * from airline.revenue_modelled order by modelled_revenue_usd desc limit 10;".to_owned(),
        "    select * from airline.forecast where flight_id = 1 and run = 'night';".to_owned(),
        "  scripts/demo --stop   stops it".to_owned(),
    ]
}

/// For programs.
pub fn json(night: &Night) -> Value {
    let seconds = |d: std::time::Duration| d.as_secs_f64();
    let rate = night.plan.flights as f64 / seconds(night.undisturbed.took);
    json!({
        "table": "airline night",
        "flights": night.plan.flights,
        "cores": night.plan.cores,
        "build_profile": profile(&night.plan.programs),
        "figures": {
            "loading_seconds": seconds(night.undisturbed.loading),
            "wall_seconds": seconds(night.undisturbed.took),
            "wall_seconds_with_kill": seconds(night.with_kill.took),
            "flights_per_second_by_segment": night.by_segment.problems as f64 / seconds(night.by_segment.took),
            "wall_seconds_direct": seconds(night.direct.took),
            "flights_per_second": rate,
            "forecasts_per_second": rate * FORECASTS as f64,
            "efficiency": efficiency(night),
            "target_seconds": TARGET_SECONDS * night.plan.flights as f64 / TARGET_FLIGHTS,
            "requeued_after_seconds": night.with_kill.killed.as_ref().map(|k| seconds(k.requeued_after)),
            "requeued_problems": night.with_kill.requeued,
            "checkouts": night.undisturbed.checkouts,
            "lease_seconds": LEASE.as_secs(),
            "seats_imputed": night.import.imputed(),
        },
        "modelled": ["fares", "booking curves", "no-shows", "legs"],
        "checks": night.checks.iter().map(|c| json!({"name": c.name, "held": c.fault.is_none(), "fault": c.fault})).collect::<Vec<_>>(),
        "all_checks_held": all_held(night),
    })
}

/// Cargo profile of the farm's programs and of the direct run: the folder that they all lie in. Only equal builds make the
/// efficiency meaningful.
fn profile(programs: &Path) -> &str {
    programs.file_name().and_then(OsStr::to_str).unwrap_or("unknown")
}

/// 1,234,567
fn group(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_grouped() {
        assert_eq!(super::group(11_000_000), "11,000,000");
        assert_eq!(super::group(999), "999");
    }
}
