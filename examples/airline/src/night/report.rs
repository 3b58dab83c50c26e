//! What the night comes to: figures for people and for programs.

use super::Night;
use super::farm::{Farm, LEASE};
use serde_json::{Value, json};
use std::fmt::Write;

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
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string");
    let flights = night.plan.flights as f64;
    let run = &night.undisturbed;
    let rate = flights / run.took.as_secs_f64();
    line(String::new());
    line(format!("A night of {} real flights on {} cores", group(night.plan.flights), night.plan.cores));
    line(format!(
        "  loading                {:>9.2} s   by SQL, in convoys of {}",
        run.loading.as_secs_f64(),
        super::CONVOY
    ));
    line(format!("  wall time, undisturbed {:>9.1} s", run.took.as_secs_f64()));
    line(format!("  wall time, one agent killed {:>4.1} s", night.with_kill.took.as_secs_f64()));
    line(format!("  flights per second     {rate:>9.0}"));
    line(format!(
        "  forecasts per second   {:>9}   110 a flight (modelled demand, Monte Carlo revenue)",
        group((rate * FORECASTS as f64) as usize)
    ));
    line(format!(
        "  by segment             {:>9.0}   flights per second, on {} flights",
        night.by_segment.problems as f64 / night.by_segment.took.as_secs_f64(),
        group(night.by_segment.problems.unsigned_abs() as usize)
    ));
    line(format!(
        "  wall time, direct      {:>9.1} s   the same controller with rayon, without PC Farm",
        night.direct.took.as_secs_f64()
    ));
    line(format!(
        "  efficiency             {:>9.1} %   direct / farm; {} checkouts",
        100.0 * efficiency(night),
        run.checkouts
    ));
    let target = TARGET_SECONDS * flights / TARGET_FLIGHTS;
    line(format!(
        "  target                 {target:>9.0} s   three hours for 100,000 flights on 150 to 200 PCs, as published; here: {:.0} times faster",
        target / run.took.as_secs_f64()
    ));
    if let Some(killed) = &night.with_kill.killed {
        line(format!(
            "  after SIGKILL          {:>9.1} s   until the {} problems of workstation {} were requeued (lease {} s, default 20 s)",
            killed.requeued_after.as_secs_f64(),
            night.with_kill.requeued,
            killed.workstation_id,
            LEASE.as_secs()
        ));
    }
    line(format!(
        "  seats                  {:>9}   of {} are imputed; fares and booking curves are modelled, seed {}",
        group(night.import.imputed()),
        group(night.import.flights),
        super::SEED
    ));
    line(String::new());
    for check in &night.checks {
        match &check.fault {
            None => line(format!("  ok      {}", check.name)),
            Some(fault) => line(format!("  BROKEN  {}: {fault}", check.name)),
        }
    }
    if night.plan.keep {
        line(String::new());
        line("The farm is still running. Look around:".to_owned());
        line(format!("  target/release/pcfarm --server {} status", farm.server_url()));
        line(format!("  psql '{}'", farm.database_url()));
        line("    select * from airline.revenue_modelled order by modelled_revenue_usd desc limit 10;".to_owned());
        line("    select * from airline.forecast where flight_id = 1 and run = 'night';".to_owned());
        line("  scripts/demo --stop   stops it".to_owned());
    } else {
        line(String::new());
        line(
            "The results were in airline.revenue_modelled and airline.forecast, and are gone with the demo's database;"
                .to_owned(),
        );
        line("scripts/demo --keep leaves the farm running to look at them.".to_owned());
    }
    out
}

/// For programs.
pub fn json(night: &Night) -> Value {
    let seconds = |d: std::time::Duration| d.as_secs_f64();
    let rate = night.plan.flights as f64 / seconds(night.undisturbed.took);
    json!({
        "table": "airline night",
        "flights": night.plan.flights,
        "cores": night.plan.cores,
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
