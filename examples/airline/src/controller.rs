//! Plans one flight: forecast, no-shows, controls, simulation. A pure function of its input.

use crate::forecast::{self, Forecast};
use crate::history;
use crate::inventory::{ByLeg, BySegment, Controls, InventoryControl};
use crate::itinerary::Itinerary;
use crate::no_show;
use crate::records::{
    CLASSES, FareBandRow, FlightInput, FlightResult, PERIODS, Variant, array_of_hundredths, array_of_integers, band_of,
};
use crate::simulation::{RUNS, Simulated, Simulation};
use anyhow::Context;

/// What is decided for one flight.
#[derive(Debug, Clone)]
pub struct FlightPlan {
    pub itinerary: Itinerary,
    pub forecast: Forecast,
    pub no_show: [f64; CLASSES],
    /// For each booking period, the first of which begins when bookings open.
    pub controls: Vec<Controls>,
    pub simulated: Simulated,
}

/// Plans a flight with the inventory control that its problem asks for.
pub fn solve_flight(input: &FlightInput<'_>) -> anyhow::Result<FlightPlan> {
    let control: &dyn InventoryControl = match input.payload.variant {
        Variant::Leg => &ByLeg,
        Variant::Segment => &BySegment,
    };
    solve_with(control, input, RUNS)
}

/// Plans a flight with any inventory control and number of simulation runs.
pub fn solve_with(control: &dyn InventoryControl, input: &FlightInput<'_>, runs: u32) -> anyhow::Result<FlightPlan> {
    let bytes = history::decode(&input.history.bookings)?;
    let season_factor = input.seasons.iter().map(|season| season.demand_factor).product();
    let forecast = forecast::forecast(history::departures(&bytes), season_factor);
    let band = own_band(input)?;
    let no_show = no_show::rates(history::departures(&bytes), &band.no_show_rate, band.no_show_weight);
    let seats = input.aircraft_type.seats;
    let authorised = no_show::authorised(seats, show_rate(&forecast, &no_show));
    let itinerary = Itinerary::new(input.flight, input.fares, &forecast, authorised)?;
    let controls: Vec<Controls> = (0..PERIODS).map(|period| control.controls(&itinerary, period)).collect();
    let simulation =
        Simulation { itinerary: &itinerary, forecast: &forecast, controls: &controls, no_show: &no_show, seats };
    let simulated = simulation.run(input.flight_id, runs);
    Ok(FlightPlan { itinerary, forecast, no_show, controls, simulated })
}

fn own_band<'a>(input: &FlightInput<'a>) -> anyhow::Result<&'a FareBandRow> {
    let band = band_of(input.flight.miles);
    input.fares.iter().find(|row| row.band == band).with_context(|| format!("no fares for distance band {band}"))
}

/// The probability that a booking of the expected mix shows up.
fn show_rate(forecast: &Forecast, no_show: &[f64; CLASSES]) -> f64 {
    let (mut bookings, mut missing) = (0.0, 0.0);
    for (to_come, rate) in forecast.mean.iter().zip(no_show) {
        bookings += to_come[0];
        missing += to_come[0] * rate;
    }
    if bookings > 0.0 { 1.0 - missing / bookings } else { 1.0 }
}

impl FlightPlan {
    /// The result to store: the 110 forecasts and the rest, rounded.
    pub fn result(&self, input: &FlightInput<'_>) -> FlightResult {
        let at_points = |by_class: &'_ [[f64; PERIODS]; CLASSES]| -> Vec<f64> {
            by_class.iter().flat_map(|row| row[1..].iter().copied()).collect()
        };
        let deviation: Vec<f64> = at_points(&self.forecast.variance).into_iter().map(f64::sqrt).collect();
        let protection = self.controls[0].protection.iter().take(self.itinerary.legs).flatten();
        let to_cents = |amount: f64| (amount * 100.0).round() / 100.0;
        FlightResult {
            run: input.payload.run.clone(),
            variant: input.payload.variant,
            seats: input.aircraft_type.seats,
            seats_imputed_by: input.aircraft_type.imputed_by.clone(),
            authorised: self.itinerary.authorised,
            demand: array_of_hundredths(at_points(&self.forecast.mean).iter()),
            deviation: array_of_hundredths(deviation.iter()),
            no_show: array_of_thousandths(&self.no_show),
            protection: array_of_hundredths(protection),
            booking_limit: array_of_integers(self.booking_limits().iter()),
            revenue: to_cents(self.simulated.mean_revenue),
            standard_error: to_cents(self.simulated.standard_error),
        }
    }

    /// Seats for sale in each class of each segment when bookings open.
    pub fn booking_limits(&self) -> Vec<i32> {
        let left = [i32::from(self.itinerary.authorised); crate::records::MAX_LEGS];
        (0..self.itinerary.segments.len())
            .flat_map(|segment| (0..CLASSES).map(move |class| (segment, class)))
            .map(|(segment, class)| self.controls[0].for_sale(&self.itinerary, &left, segment, class).max(0))
            .collect()
    }
}

/// Rates need a digit more than demands do.
fn array_of_thousandths(rates: &[f64; CLASSES]) -> String {
    let percent: Vec<f64> = rates.iter().map(|rate| rate * 100.0).collect();
    array_of_hundredths(percent.iter())
}
