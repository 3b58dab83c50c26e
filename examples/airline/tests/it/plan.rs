//! Plans of single flights, from modelled rows and without a database.

use pcfarm_airline::controller::{solve_flight, solve_with};
use pcfarm_airline::inventory::{ByLeg, BySegment, InventoryControl};
use pcfarm_airline::model::{self, Market};
use pcfarm_airline::records::{
    AircraftTypeRow, BANDS, BookingHistoryRow, CLASSES, FareBandRow, FlightInput, FlightRow, POINTS, Payload,
    SeasonRow, Variant,
};
use rayon::prelude::*;

struct Flight {
    payload: Payload,
    flight: FlightRow,
    aircraft_type: AircraftTypeRow,
    fares: Vec<FareBandRow>,
    history: BookingHistoryRow,
    seasons: Vec<SeasonRow>,
}

impl Flight {
    fn of_one_leg(seats: u16) -> Self {
        Self::new(seats, vec![1100], vec![1.0], 0.0)
    }

    fn of_two_legs(seats: u16) -> Self {
        Self::new(seats, vec![1200, 1400], vec![0.25, 0.5, 0.25], 0.5)
    }

    fn new(seats: u16, leg_miles: Vec<u16>, segment_share: Vec<f64>, local_share: f64) -> Self {
        let bytes = model::booking_history(&Market { key: u64::from(seats), seats, local_share }, 2013);
        let bookings = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            payload: Payload { run: "test".to_owned(), variant: Variant::Leg },
            flight: FlightRow { miles: leg_miles.iter().sum(), leg_miles, segment_share },
            aircraft_type: AircraftTypeRow { seats, imputed_by: None },
            fares: fares(),
            history: BookingHistoryRow { bookings },
            seasons: vec![SeasonRow { demand_factor: 1.1 }],
        }
    }

    fn input(&self, flight_id: i64) -> FlightInput<'_> {
        FlightInput {
            flight_id,
            payload: &self.payload,
            flight: &self.flight,
            aircraft_type: &self.aircraft_type,
            fares: &self.fares,
            history: &self.history,
            seasons: &self.seasons,
        }
    }
}

fn fares() -> Vec<FareBandRow> {
    let classes: Vec<_> = model::fare_classes().collect();
    (0..BANDS)
        .map(|band| FareBandRow {
            band,
            fare_fixed: std::array::from_fn(|class| classes[band * CLASSES + class].fare_fixed),
            fare_per_mile: std::array::from_fn(|class| classes[band * CLASSES + class].fare_per_mile),
            no_show_rate: std::array::from_fn(|class| classes[band * CLASSES + class].no_show_rate),
            no_show_weight: model::NO_SHOW_WEIGHT,
        })
        .collect()
}

#[test]
fn both_controls_are_the_same_on_one_leg() {
    for seats in [2, 50, 149, 379] {
        let flight = Flight::of_one_leg(seats);
        let by_leg = solve_with(&ByLeg, &flight.input(1), 50).expect("the flight is whole");
        let by_segment = solve_with(&BySegment, &flight.input(1), 50).expect("the flight is whole");
        assert_eq!(by_leg.controls, by_segment.controls);
        assert_eq!(by_leg.simulated, by_segment.simulated);
    }
}

#[test]
fn they_differ_on_two() {
    let flight = Flight::of_two_legs(149);
    let by_leg = solve_with(&ByLeg, &flight.input(1), 50).expect("the flight is whole");
    let by_segment = solve_with(&BySegment, &flight.input(1), 50).expect("the flight is whole");
    assert_ne!(by_leg.controls, by_segment.controls);
    assert_eq!(by_leg.forecast.mean, by_segment.forecast.mean);
}

#[test]
fn the_standard_error_is_honest() {
    for (control, flight) in
        [(&ByLeg as &dyn InventoryControl, Flight::of_one_leg(149)), (&BySegment, Flight::of_two_legs(120))]
    {
        let large = solve_with(control, &flight.input(0), 20_000).expect("the flight is whole").simulated;
        for flight_id in 1..=8 {
            let plan = solve_with(control, &flight.input(flight_id), 330).expect("the flight is whole");
            let error = plan.simulated.mean_revenue - large.mean_revenue;
            assert!(error.abs() < 3.0 * plan.simulated.standard_error, "{error} for {:?}", plan.simulated);
        }
    }
}

#[test]
fn a_plan_depends_on_nothing_but_its_input() {
    let flight = Flight::of_two_legs(180);
    let solve = |id: i64| {
        let input = flight.input(id);
        solve_flight(&input).expect("the flight is whole").result(&input)
    };
    let one_by_one: Vec<_> = (1..=20).map(solve).collect();
    let together: Vec<_> = (1..=20i64).into_par_iter().map(solve).collect();
    assert_eq!(one_by_one, together);
    // Bits that must not change with the machine or the compiler; they may with the model.
    assert_eq!((one_by_one[0].revenue, one_by_one[0].standard_error), (97_871.27, 371.45));
}

#[test]
fn a_result_is_whole_and_small() {
    for flight in [Flight::of_one_leg(379), Flight::of_two_legs(379)] {
        let input = flight.input(1);
        let result = solve_flight(&input).expect("the flight is whole").result(&input);
        let numbers = |text: &str| text.trim_matches(['{', '}']).split(',').count();
        assert_eq!((numbers(&result.demand), numbers(&result.deviation)), (CLASSES * POINTS, CLASSES * POINTS));
        assert_eq!(numbers(&result.no_show), CLASSES);
        let legs = flight.flight.leg_miles.len();
        assert_eq!(numbers(&result.protection), legs * (CLASSES - 1));
        assert_eq!(numbers(&result.booking_limit), legs * (legs + 1) / 2 * CLASSES);
        assert!(result.revenue > 0.0 && result.standard_error < 0.02 * result.revenue);
        assert!(serde_json::to_string(&result).expect("it is plain data").len() < 2500);
    }
}

#[test]
fn limits_fall_with_the_fare_on_one_leg() {
    let flight = Flight::of_one_leg(149);
    let limits = solve_flight(&flight.input(1)).expect("the flight is whole").booking_limits();
    assert!(limits.is_sorted_by(|dearer, cheaper| dearer >= cheaper), "{limits:?}");
}

#[test]
fn missing_rows_are_an_error() {
    let mut flight = Flight::of_one_leg(149);
    flight.fares.clear();
    assert!(solve_flight(&flight.input(1)).is_err());
    let mut flight = Flight::of_one_leg(149);
    flight.flight.leg_miles.clear();
    assert!(solve_flight(&flight.input(1)).is_err());
}
