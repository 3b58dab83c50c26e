//! Import, direct run and checks on a real PostgreSQL.

use pcfarm_airline::direct::{DirectOptions, run_direct};
use pcfarm_airline::records::Variant;
use pcfarm_airline::{dataset, import, statements};
use tokio_postgres::Client;

const FLIGHTS: usize = 200;

async fn count(client: &Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.expect("the query is right").get(0)
}

#[tokio::test]
async fn a_small_night_without_pc_farm() {
    let database = pcfarm_sql::testing::empty_database().await;
    let mut client = database.client().await;
    let summary = import::import(&mut client, dataset::NYC_FLIGHTS_2013, FLIGHTS, 2013).await.expect("importing");
    let again = import::import(&mut client, dataset::NYC_FLIGHTS_2013, FLIGHTS, 2013).await.expect("importing again");
    assert_eq!((summary.flights, &summary.seats), (FLIGHTS, &again.seats));
    assert_eq!(summary.seats.values().sum::<usize>(), FLIGHTS);
    let imputed = "select count(*) from airline.flight join airline.aircraft_type using (aircraft_type_id) \
         where imputed_by is not null";
    assert_eq!(count(&client, imputed).await, summary.imputed() as i64);
    assert!(summary.imputed() > 0 && summary.flights_with_stop > 0);
    assert_eq!(count(&client, "select count(*) from airline.booking_curve").await, summary.markets as i64 * 6 * 120);

    for (run, variant, checkout_size) in
        [("a", Variant::Leg, 100), ("b", Variant::Leg, 7), ("c", Variant::Segment, 200)]
    {
        let options = DirectOptions { run: run.to_owned(), variant, checkout_size, threads: 2 };
        let done = run_direct(&database.config(), &options).await.expect("running");
        assert_eq!((done.flights, done.checkouts), (FLIGHTS, FLIGHTS.div_ceil(checkout_size)));
        let faults = client.query(statements::CHECK_FORECASTS, &[&run]).await.expect("checking");
        assert!(faults.is_empty(), "{faults:?}");
    }
    let differing =
        async |other: &str| client.query(statements::CHECK_EQUAL, &[&"a", &other]).await.expect("comparing").len();
    assert_eq!(differing("b").await, 0);
    // The variants differ, and in every row: the variant is part of the plan.
    assert_eq!(differing("c").await, FLIGHTS);
    assert_eq!(differing("missing").await, FLIGHTS);
    assert_eq!(count(&client, "select count(*) from airline.forecast where run = 'a'").await, 110 * FLIGHTS as i64);
    let labelled = "select count(*) from airline.revenue_modelled where run = 'a' and seats_from <> 'registry'";
    assert_eq!(count(&client, labelled).await, summary.imputed() as i64);

    for load in [statements::LOAD, statements::LOAD_BY_SEGMENT, statements::LOAD_GROUPED] {
        assert_eq!(client.query(load, &[]).await.expect("loading").len(), FLIGHTS);
    }
}

#[tokio::test]
async fn more_flights_than_there_are_is_an_error() {
    let database = pcfarm_sql::testing::empty_database().await;
    let error = import::import(&mut database.client().await, dataset::NYC_FLIGHTS_2013, 400_000, 1).await;
    assert!(error.is_err_and(|error| error.to_string().contains("336776")));
}
