//! The airline's controller as PC Farm sees it: [`crate::controller`] behind the SDK's trait.

use crate::controller::solve_flight;
use crate::records::{
    AircraftTypeRow, BookingHistoryRow, FareBandRow, FlightInput, FlightResult, FlightRow, Payload, SeasonRow,
};
use crate::statements;
use anyhow::Context;
use pcfarm_worker::{Controller, Problem};
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Plans one flight per problem; both variants, by the payload's choice.
#[derive(Debug, Clone, Copy)]
pub struct RevenueManagement;

impl Controller for RevenueManagement {
    const NAME: &'static str = "airline";
    type Payload = Payload;
    type Solution = FlightResult;

    fn solve(&self, problem: &Problem<'_, Payload>) -> anyhow::Result<FlightResult> {
        let flight: FlightRow = only_row(problem, statements::FLIGHT)?;
        let aircraft_type: AircraftTypeRow = only_row(problem, statements::AIRCRAFT_TYPE)?;
        let history: BookingHistoryRow = only_row(problem, statements::BOOKING_HISTORY)?;
        let fares: Arc<Vec<FareBandRow>> = problem.related_shared(statements::FARE_CLASS)?;
        let seasons: Vec<SeasonRow> = problem.related(statements::SEASON)?;
        let input = FlightInput {
            flight_id: problem.key().parse().context("the key is not a flight's id")?,
            payload: problem.payload(),
            flight: &flight,
            aircraft_type: &aircraft_type,
            fares: &fares,
            history: &history,
            seasons: &seasons,
        };
        Ok(solve_flight(&input)?.result(&input))
    }
}

fn only_row<T: DeserializeOwned>(problem: &Problem<'_, Payload>, read: &str) -> anyhow::Result<T> {
    problem.related(read)?.pop().with_context(|| format!("related read {read} has no row for this flight"))
}
