//! Fills schema `airline`: real flights, imputed seats, modelled bookings. One transaction; what was there before
//! is replaced, plans included, because they were made from other data.

use crate::dataset::{self, Departure};
use crate::model::{self, Market};
use crate::records::{BANDS, CLASSES};
use crate::seats::{self, Seats, Source};
use crate::statements;
use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::SinkExt;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Transaction};

/// What was imported, and where the seats come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSummary {
    pub flights: usize,
    /// Flights that are modelled with two legs.
    pub flights_with_stop: usize,
    pub markets: usize,
    /// Flights by where their seats come from; a rule that was not needed is not there.
    pub seats: BTreeMap<Source, usize>,
    /// Of the imputed: those whose registry entry was there but cannot be right.
    pub disbelieved: usize,
    pub took: Duration,
}

impl ImportSummary {
    pub fn imputed(&self) -> usize {
        self.seats.iter().filter(|(source, _)| source.rule().is_some()).map(|(_, flights)| flights).sum()
    }
}

/// Imports `flights` departures, spread evenly over the year, with bookings modelled from `seed`.
pub async fn import(client: &mut Client, compressed: &[u8], flights: usize, seed: u64) -> Result<ImportSummary> {
    let started = Instant::now();
    // Nothing else happens on this connection while the data is made, so the cores may be busy here.
    let data = prepare(compressed, flights, seed)?;
    client.batch_execute(statements::SCHEMA).await.context("creating schema airline")?;
    let transaction = client.transaction().await.context("beginning the import")?;
    transaction.batch_execute(TRUNCATE).await.context("emptying schema airline")?;
    transaction.batch_execute(statements::SEASONS).await.context("writing the seasons")?;
    copy(&transaction, COPY_FARE_CLASS, vec![fare_class_rows()]).await?;
    copy(&transaction, COPY_AIRCRAFT_TYPE, vec![data.aircraft_type_rows]).await?;
    copy(&transaction, COPY_BOOKING_HISTORY, data.booking_history_rows).await?;
    copy(&transaction, COPY_FLIGHT, data.flight_rows).await?;
    transaction.commit().await.context("committing the import")?;
    client.batch_execute(ANALYZE).await.context("analysing schema airline")?;
    Ok(ImportSummary { took: started.elapsed(), ..data.summary })
}

const TRUNCATE: &str = "truncate airline.flight, airline.aircraft_type, airline.fare_class, airline.booking_history, \
     airline.season, airline.flight_forecast";
const ANALYZE: &str = "analyze airline.flight, airline.aircraft_type, airline.fare_class, airline.booking_history, \
     airline.season";
const COPY_FARE_CLASS: &str = "copy airline.fare_class (distance_band, class, code, fare_fixed, fare_per_mile, \
     demand_share, no_show_rate, no_show_weight) from stdin";
const COPY_AIRCRAFT_TYPE: &str =
    "copy airline.aircraft_type (aircraft_type_id, seats, imputed_by, registry_seats, flights) from stdin";
const COPY_BOOKING_HISTORY: &str = "copy airline.booking_history (market_id, departures, bookings) from stdin";
const COPY_FLIGHT: &str = "copy airline.flight (flight_id, market_id, aircraft_type_id, flight_date, departure, \
     flight_number, distance_miles, departed, carrier, origin, destination, hub, leg_miles, segment_share) from stdin";

/// Rows that one task formats and one message carries.
const ROWS_PER_CHUNK: usize = 2000;

/// Everything as COPY's text, ready to send.
struct Prepared {
    aircraft_type_rows: String,
    booking_history_rows: Vec<String>,
    flight_rows: Vec<String>,
    summary: ImportSummary,
}

fn prepare(compressed: &[u8], flights: usize, seed: u64) -> Result<Prepared> {
    let departures = dataset::read(compressed)?;
    let chosen = dataset::spread(&departures, flights)?;
    let seats = seats::impute(&departures);
    let (market_of, markets) = markets(&departures, &seats, &chosen);
    let types = aircraft_types(&seats, &chosen);
    let type_ids: HashMap<Seats, usize> = types.keys().enumerate().map(|(i, seats)| (*seats, i + 1)).collect();
    let flight_rows = chosen
        .par_chunks(ROWS_PER_CHUNK)
        .map(|chunk| {
            let mut rows = String::with_capacity(chunk.len() * 100);
            for &i in chunk {
                push_flight(
                    &mut rows,
                    &departures[i],
                    market_of[&model::market_key(&departures[i])],
                    type_ids[&seats[i]],
                );
            }
            rows
        })
        .collect();
    let booking_history_rows = markets
        .par_chunks(ROWS_PER_CHUNK / 4)
        .enumerate()
        .map(|(chunk, markets)| history_rows(chunk * (ROWS_PER_CHUNK / 4) + 1, markets, seed))
        .collect();
    let summary = ImportSummary {
        flights,
        flights_with_stop: chosen.iter().filter(|&&i| model::stop(&departures[i]).is_some()).count(),
        markets: markets.len(),
        seats: types.iter().fold(BTreeMap::new(), |mut sum, (seats, flights)| {
            *sum.entry(seats.source).or_default() += flights;
            sum
        }),
        disbelieved: chosen
            .iter()
            .filter(|&&i| seats[i].registry.is_some_and(|registry| registry != seats[i].seats))
            .count(),
        took: Duration::ZERO,
    };
    Ok(Prepared { aircraft_type_rows: aircraft_type_rows(&types), booking_history_rows, flight_rows, summary })
}

/// The markets of the chosen flights, numbered from 1 in order of appearance. A market's demand follows the
/// median seats of all its flights in the data, chosen or not.
fn markets(departures: &[Departure], seats: &[Seats], chosen: &[usize]) -> (HashMap<u64, usize>, Vec<Market>) {
    let mut ids: HashMap<u64, usize> = HashMap::new();
    let mut firsts = Vec::new();
    for &i in chosen {
        let next = ids.len() + 1;
        ids.entry(model::market_key(&departures[i])).or_insert_with(|| {
            firsts.push(i);
            next
        });
    }
    let mut seats_of: Vec<Vec<u16>> = vec![Vec::new(); firsts.len()];
    for (departure, seats) in departures.iter().zip(seats) {
        if let Some(id) = ids.get(&model::market_key(departure)) {
            seats_of[id - 1].push(seats.seats);
        }
    }
    let market = |(&first, mut seats): (&usize, Vec<u16>)| {
        let middle = (seats.len() - 1) / 2;
        Market {
            key: model::market_key(&departures[first]),
            seats: *seats.select_nth_unstable(middle).1,
            local_share: model::stop(&departures[first]).map_or(0.0, |stop| stop.share[0] + stop.share[2]),
        }
    };
    let markets = firsts.iter().zip(seats_of).map(market).collect();
    (ids, markets)
}

/// How many of the chosen flights have each cabin.
fn aircraft_types(seats: &[Seats], chosen: &[usize]) -> BTreeMap<Seats, usize> {
    let mut types = BTreeMap::new();
    for &i in chosen {
        *types.entry(seats[i]).or_default() += 1;
    }
    types
}

fn aircraft_type_rows(types: &BTreeMap<Seats, usize>) -> String {
    let mut rows = String::new();
    for (i, (seats, flights)) in types.iter().enumerate() {
        let rule = seats.source.rule().unwrap_or(NULL);
        let registry = seats.registry.map_or_else(|| NULL.to_owned(), |registry| registry.to_string());
        writeln!(rows, "{}\t{}\t{rule}\t{registry}\t{flights}", i + 1, seats.seats).expect(TO_STRING);
    }
    rows
}

fn fare_class_rows() -> String {
    let mut rows = String::with_capacity(BANDS * CLASSES * 64);
    for class in model::fare_classes() {
        let code = model::CLASS_CODES[class.class];
        writeln!(
            rows,
            "{}\t{}\t{code}\t{:.2}\t{:.4}\t{}\t{}\t{}",
            class.band,
            class.class + 1,
            class.fare_fixed,
            class.fare_per_mile,
            class.demand_share,
            class.no_show_rate,
            model::NO_SHOW_WEIGHT
        )
        .expect(TO_STRING);
    }
    rows
}

fn history_rows(first_id: usize, markets: &[Market], seed: u64) -> String {
    let mut rows = String::with_capacity(markets.len() * 2000);
    for (i, market) in markets.iter().enumerate() {
        write!(rows, "{}\t{}\t\\\\x", first_id + i, model::PAST_DEPARTURES).expect(TO_STRING);
        for byte in model::booking_history(market, seed) {
            rows.extend([byte >> 4, byte & 15].map(|nibble| char::from(b"0123456789abcdef"[usize::from(nibble)])));
        }
        rows.push('\n');
    }
    rows
}

fn push_flight(rows: &mut String, flight: &Departure, market: usize, aircraft_type: usize) {
    let (carrier, origin, destination) = (flight.carrier.as_str(), flight.origin.as_str(), flight.destination.as_str());
    write!(
        rows,
        "{}\t{market}\t{aircraft_type}\t{}\t{:02}:{:02}\t{}\t{}\t{}\t{carrier}\t{origin}\t{destination}\t",
        flight.flight_id,
        flight.date.as_str(),
        flight.time / 100,
        flight.time % 100,
        flight.number,
        flight.miles,
        if flight.departed { 't' } else { 'f' },
    )
    .expect(TO_STRING);
    match model::stop(flight) {
        None => writeln!(rows, "{NULL}\t{{{}}}\t{{1}}", flight.miles),
        Some(stop) => {
            let [first, through, second] = stop.share;
            let [to_hub, from_hub] = stop.leg_miles;
            writeln!(rows, "{}\t{{{to_hub},{from_hub}}}\t{{{first:.3},{through:.3},{second:.3}}}", stop.hub)
        }
    }
    .expect(TO_STRING);
}

const NULL: &str = "\\N";
const TO_STRING: &str = "writing to a String does not fail";

async fn copy(transaction: &Transaction<'_>, statement: &str, rows: Vec<String>) -> Result<()> {
    let sink = transaction.copy_in::<_, Bytes>(statement).await.with_context(|| format!("starting {statement}"))?;
    let mut sink = std::pin::pin!(sink);
    for rows in rows {
        sink.send(Bytes::from(rows)).await.with_context(|| format!("sending {statement}"))?;
    }
    sink.finish().await.with_context(|| format!("finishing {statement}"))?;
    Ok(())
}
