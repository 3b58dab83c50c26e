//! Prepares and checks the airline night: fills schema `airline`, or plans it without PC Farm.

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use pcfarm_airline::direct::{DirectOptions, run_direct};
use pcfarm_airline::records::Variant;
use pcfarm_airline::{dataset, import, statements};
use tokio_postgres::{Client, Config, NoTls};

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Where the airline's PostgreSQL is
    #[arg(long, env = "DATABASE_URL")]
    database_url: Config,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fill schema airline with real flights and modelled bookings (replaces what is there)
    Import {
        #[arg(long, default_value_t = 100_000)]
        flights: usize,
        /// Seed of everything that is modelled
        #[arg(long, default_value_t = 2013)]
        seed: u64,
    },
    /// Plan all flights on this machine, without PC Farm
    Direct {
        #[arg(long, default_value = "direct")]
        run: String,
        #[arg(long, default_value = "leg")]
        variant: VariantArgument,
        #[arg(long, default_value_t = 500)]
        checkout_size: usize,
        /// Threads that crunch; one per core unless given
        #[arg(long)]
        threads: Option<usize>,
    },
    /// Check that a run is whole, and that it equals another one
    Check {
        run: String,
        #[arg(long)]
        equal_to: Option<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum VariantArgument {
    Leg,
    Segment,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let config = arguments.database_url;
    match arguments.command {
        Command::Import { flights, seed } => import_flights(&config, flights, seed).await,
        Command::Direct { run, variant, checkout_size, threads } => {
            let variant = match variant {
                VariantArgument::Leg => Variant::Leg,
                VariantArgument::Segment => Variant::Segment,
            };
            let cores = || std::thread::available_parallelism().map_or(1, usize::from);
            let threads = threads.unwrap_or_else(cores);
            let done = run_direct(&config, &DirectOptions { run, variant, checkout_size, threads }).await?;
            let per_flight = done.crunching.as_secs_f64() * 1e6 / done.flights.max(1) as f64;
            println!("{} flights in {:.1?}; {per_flight:.0} µs in the controller each", done.flights, done.took);
            Ok(())
        }
        Command::Check { run, equal_to } => check(&config, &run, equal_to.as_deref()).await,
    }
}

async fn import_flights(config: &Config, flights: usize, seed: u64) -> Result<()> {
    with_client(config, async |mut client| {
        let summary = import::import(&mut client, dataset::NYC_FLIGHTS_2013, flights, seed).await?;
        let (stops, markets) = (summary.flights_with_stop, summary.markets);
        println!("{} real flights of {markets} markets in {:.1?}", summary.flights, summary.took);
        println!("{stops} are modelled with a stop; bookings, fares and no-shows are modelled from seed {seed}");
        println!("{} seat counts are imputed:", summary.imputed());
        for (rule, flights) in summary.seats.iter().filter_map(|(source, flights)| Some((source.rule()?, flights))) {
            println!("  {flights:>7}  {rule}");
        }
        println!("of these, {} had a registry entry that cannot be right", summary.disbelieved);
        Ok(())
    })
    .await
}

async fn check(config: &Config, run: &str, equal_to: Option<&str>) -> Result<()> {
    with_client(config, async |client| {
        let faults = client.query(statements::CHECK_FORECASTS, &[&run]).await.context("checking the forecasts")?;
        if let Some(first) = faults.first() {
            let (flight, fault): (i64, &str) = (first.try_get(0)?, first.try_get(1)?);
            anyhow::bail!("{} flights of run {run} have faults; the first is {flight}: {fault}", faults.len());
        }
        println!("run {run} has a plan with 110 forecasts for every flight");
        if let Some(other) = equal_to {
            let different = client.query(statements::CHECK_EQUAL, &[&run, &other]).await.context("comparing runs")?;
            ensure!(different.is_empty(), "{} flights differ between {run} and {other}", different.len());
            println!("runs {run} and {other} are equal");
        }
        Ok(())
    })
    .await
}

async fn with_client(config: &Config, work: impl AsyncFnOnce(Client) -> Result<()>) -> Result<()> {
    let (client, connection) = config.connect(NoTls).await.context("connecting to PostgreSQL")?;
    let (done, ()) = tokio::join!(work(client), async { drop(connection.await) });
    done
}
