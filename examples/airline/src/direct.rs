//! The same night without PC Farm: what the farm's efficiency is measured against.
//!
//! The same statements, the same controller, the same write-back, in checkouts of the same size, each written
//! back in a durable transaction of its own. Reading the next checkout, crunching this one and writing the last
//! one overlap, on three connections, so that nothing here is slow for want of trying.

use crate::controller;
use crate::records::{
    AircraftTypeRow, BookingHistoryRow, FareBandRow, FlightInput, FlightRow, Payload, SeasonRow, Variant,
};
use crate::statements;
use anyhow::{Context, Result};
use rayon::prelude::*;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::types::Json;
use tokio_postgres::{Client, Config, NoTls, Statement};

/// Checkouts between reading and crunching, and between crunching and writing: one in hand, one coming.
const AHEAD: usize = 2;

/// What a direct run did.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectRun {
    pub flights: usize,
    pub checkouts: usize,
    /// From the first load query to the last commit.
    pub took: Duration,
    /// Time inside the controller, all threads together; on a machine that is busy otherwise, more than core time.
    pub crunching: Duration,
}

/// How a direct run is cut and spread.
#[derive(Debug, Clone)]
pub struct DirectOptions {
    /// The run that its plans are stored under.
    pub run: String,
    pub variant: Variant,
    pub checkout_size: usize,
    pub threads: usize,
}

/// Plans every imported flight.
pub async fn run_direct(config: &Config, options: &DirectOptions) -> Result<DirectRun> {
    let mut connections = JoinSet::new();
    let loader = connect(config, &mut connections).await?;
    let reader = Reader::new(connect(config, &mut connections).await?).await?;
    let writer = Writer::new(connect(config, &mut connections).await?).await?;
    let threads = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build().context("starting threads")?;
    let started = Instant::now();
    let problems = load(&loader, options).await?;
    let (to_crunch, crunch_from) = mpsc::channel(AHEAD);
    let (to_write, write_from) = mpsc::channel(AHEAD);
    let read = reader.read_all(&problems, options.checkout_size, to_crunch);
    let crunch = crunch_all(Arc::new(threads), crunch_from, to_write);
    let write = writer.write_all(write_from);
    // One task: reading and writing wait for the database, crunching for its threads. The first failure drops
    // the other two with their channels.
    let ((), crunching, checkouts) = tokio::try_join!(read, crunch, write)?;
    Ok(DirectRun { flights: problems.len(), checkouts, took: started.elapsed(), crunching })
}

async fn connect(config: &Config, connections: &mut JoinSet<()>) -> Result<Client> {
    let (client, connection) = config.connect(NoTls).await.context("connecting to PostgreSQL")?;
    // A broken connection shows as an error of the client that uses it.
    connections.spawn(async move { drop(connection.await) });
    Ok(client)
}

#[derive(Debug, Clone)]
struct Problem {
    key: String,
    payload: Arc<Payload>,
}

async fn load(client: &Client, options: &DirectOptions) -> Result<Vec<Problem>> {
    let variant = match options.variant {
        Variant::Leg => "leg",
        Variant::Segment => "segment",
    };
    let rows = client
        .query("select key, payload from airline.problem($1, $2)", &[&options.run, &variant])
        .await
        .context("loading the problems")?;
    rows.iter()
        .map(|row| {
            let Json(payload) = row.try_get::<_, Json<Payload>>(1).context("reading a payload")?;
            Ok(Problem { key: row.try_get(0)?, payload: Arc::new(payload) })
        })
        .collect()
}

/// A checkout with all its related rows.
struct Checkout {
    problems: Vec<Problem>,
    flights: HashMap<String, FlightRow>,
    aircraft_types: HashMap<String, AircraftTypeRow>,
    fares: Vec<FareBandRow>,
    histories: HashMap<String, BookingHistoryRow>,
    seasons: HashMap<String, Vec<SeasonRow>>,
}

struct Solved {
    keys: Vec<String>,
    results: Vec<Json<crate::records::FlightResult>>,
}

struct Reader {
    client: Client,
    related: Vec<Statement>,
}

impl Reader {
    async fn new(client: Client) -> Result<Self> {
        let mut related = Vec::new();
        for (name, read) in statements::RELATED {
            // As PC Farm's server wraps them.
            let wrapped = format!("select q.key, to_jsonb(q) from (\n{read}\n) q");
            related.push(client.prepare(&wrapped).await.with_context(|| format!("preparing related read {name}"))?);
        }
        Ok(Self { client, related })
    }

    async fn read_all(&self, problems: &[Problem], checkout_size: usize, to: mpsc::Sender<Checkout>) -> Result<()> {
        for problems in problems.chunks(checkout_size.max(1)) {
            let checkout = self.read(problems.to_vec()).await?;
            to.send(checkout).await.ok().context("crunching has stopped")?;
        }
        Ok(())
    }

    async fn read(&self, problems: Vec<Problem>) -> Result<Checkout> {
        let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
        // Polled together, the five are pipelined: one round trip.
        let (flights, aircraft_types, fares, histories, seasons) = tokio::try_join!(
            self.rows(0, &keys),
            self.rows(1, &keys),
            self.rows::<FareBandRow>(2, &keys),
            self.rows(3, &keys),
            self.rows::<SeasonRow>(4, &keys),
        )?;
        let mut seasons_of: HashMap<String, Vec<SeasonRow>> = HashMap::with_capacity(problems.len());
        for (key, season) in seasons {
            seasons_of.entry(key).or_default().push(season);
        }
        Ok(Checkout {
            problems,
            flights: flights.into_iter().collect(),
            aircraft_types: aircraft_types.into_iter().collect(),
            fares: fares.into_iter().map(|(_, row)| row).collect(),
            histories: histories.into_iter().collect(),
            seasons: seasons_of,
        })
    }

    async fn rows<T: DeserializeOwned>(&self, read: usize, keys: &[&str]) -> Result<Vec<(String, T)>> {
        let name = statements::RELATED[read].0;
        let rows =
            self.client.query(&self.related[read], &[&keys]).await.with_context(|| format!("related read {name}"))?;
        rows.iter()
            .map(|row| {
                let Json(value) = row.try_get::<_, Json<T>>(1).with_context(|| format!("a row of {name}"))?;
                Ok((row.try_get::<_, Option<String>>(0)?.unwrap_or_default(), value))
            })
            .collect()
    }
}

/// Crunches up to two checkouts at once, so that no thread is idle while the last flights of one are finished.
async fn crunch_all(
    threads: Arc<rayon::ThreadPool>,
    mut from: mpsc::Receiver<Checkout>,
    to: mpsc::Sender<Solved>,
) -> Result<Duration> {
    let mut crunching = Duration::ZERO;
    let mut in_hand = std::collections::VecDeque::new();
    loop {
        let next = if in_hand.len() < AHEAD { from.recv().await } else { None };
        if let Some(checkout) = next {
            let (done, result) = oneshot::channel();
            // The receiver is gone only when the run has failed already.
            threads.spawn(move || drop(done.send(crunch(&checkout))));
            in_hand.push_back(result);
            if in_hand.len() < AHEAD {
                continue;
            }
        }
        let Some(result) = in_hand.pop_front() else {
            return Ok(crunching);
        };
        let (solved, took) = result.await.context("a crunching thread was lost")??;
        crunching += took;
        to.send(solved).await.ok().context("writing has stopped")?;
    }
}

fn crunch(checkout: &Checkout) -> Result<(Solved, Duration)> {
    let solved: Vec<_> = checkout
        .problems
        .par_iter()
        .map(|problem| {
            let started = Instant::now();
            let result = solve(checkout, problem).with_context(|| format!("solving flight {}", problem.key))?;
            Ok((Json(result), started.elapsed()))
        })
        .collect::<Result<_>>()?;
    let took = solved.iter().map(|(_, took)| *took).sum();
    let keys = checkout.problems.iter().map(|problem| problem.key.clone()).collect();
    Ok((Solved { keys, results: solved.into_iter().map(|(result, _)| result).collect() }, took))
}

fn solve(checkout: &Checkout, problem: &Problem) -> Result<crate::records::FlightResult> {
    let key = &problem.key;
    let input = FlightInput {
        flight_id: key.parse().context("the key is not a flight's id")?,
        payload: &problem.payload,
        flight: checkout.flights.get(key).context("no flight row")?,
        aircraft_type: checkout.aircraft_types.get(key).context("no aircraft type row")?,
        fares: &checkout.fares,
        history: checkout.histories.get(key).context("no booking history")?,
        seasons: checkout.seasons.get(key).map_or(&[], Vec::as_slice),
    };
    Ok(controller::solve_flight(&input)?.result(&input))
}

struct Writer {
    client: Client,
    write_back: Statement,
}

impl Writer {
    async fn new(client: Client) -> Result<Self> {
        client.batch_execute("set synchronous_commit = on").await.context("asking for durable commits")?;
        let write_back = client.prepare(statements::WRITE_BACK).await.context("preparing the write-back")?;
        Ok(Self { client, write_back })
    }

    async fn write_all(&self, mut from: mpsc::Receiver<Solved>) -> Result<usize> {
        let mut checkouts = 0;
        while let Some(solved) = from.recv().await {
            // One statement is one transaction.
            let written = self.client.execute(&self.write_back, &[&solved.keys, &solved.results]).await;
            let written = written.context("writing a checkout back")?;
            anyhow::ensure!(written == solved.keys.len() as u64, "{written} plans written of {}", solved.keys.len());
            checkouts += 1;
        }
        Ok(checkouts)
    }
}
