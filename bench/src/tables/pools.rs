//! Table `pools`: what a slow dependency does to problems that do not need it, with one pool of threads for all steps and
//! with a pool for each dependency. The experiment that step pools were published with, as a draft without results: two
//! kinds of problems, one that holds one of fifty database connections, one that needs only a core.

use crate::context::{Context, Database as Postgres};
use crate::holding::{self, CONNECTIONS, Connection, Database, Out, Pools};
use crate::plot::{Kind as PlotKind, Plot};
use crate::report::{Figures, Report, quantile};
use crate::{spin, usage};
use anyhow::Context as _;
use pcfarm_worker::trial::Rig;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// For how long a connection is held: as the paper's text and as its code has it.
const HOLDS: [(&str, Duration); 2] = [("ms_1", Duration::from_millis(1)), ("ms_100", Duration::from_millis(100))];

const IN_FLIGHT: [usize; 4] = [10, 100, 1_000, 10_000];
const QUICK_IN_FLIGHT: [usize; 2] = [10, 1_000];

/// Problems that need the database, and those that do not.
const MIXES: [(&str, usize, usize); 3] = [("even", 1, 1), ("few_db", 1, 10), ("many_db", 10, 1)];

/// A problem that needs a core takes so long.
const THOUGHT: Duration = Duration::from_millis(1);

/// The load that is measured with PostgreSQL.
const REAL: &str = "postgresql_ms_100_even_1000";

/// Threads of the shared pool that are tried: for the connections and the cores, and more.
const SHARED: [usize; 3] = [CONNECTIONS + 4, 150, 500];

/// For so long, at least, what is under way settles before it is measured.
const WARM: Duration = Duration::from_millis(250);

/// What the db kind does a second, at most, however short its calls are: to know how long a load must be measured.
const CALLS_PER_SECOND: f64 = 2_500.0;

/// What a kind must keep of what it does alone.
const KEPT: f64 = 0.95;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    notes(context, report);
    let postgres = context.empty_database().await?;
    let rounds = spin::calibrate(THOUGHT).to_string();
    let bench = Bench { context, postgres, rounds };
    let mut sizes: HashMap<String, usize> = HashMap::new();
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        for (hold_name, hold) in HOLDS {
            let database = Database::new(hold, (0..CONNECTIONS).map(|_| Connection::Elsewhere).collect());
            for in_flight in in_flights(context) {
                for &(mix, of_db, of_cpu) in mixes(context) {
                    let name = format!("{hold_name}_{mix}_{in_flight}");
                    if !context.wants(&name) {
                        continue;
                    }
                    let load = Load::of(in_flight, of_db, of_cpu);
                    let size = sizes.get(&name).copied();
                    let cell = Cell { name: &name, hold_name, database: &database, load };
                    let (size, processed) = bench.cell(&cell, size, &mut figures).await.context(name.clone())?;
                    sizes.insert(name, size);
                    report.processed(processed);
                }
            }
            if context.wants(&format!("{hold_name}_lone")) {
                report.processed(bench.lone(hold_name, &database, &mut figures).await?);
            }
            for (out, load) in outages(context, hold) {
                let name = format!("{hold_name}_{out}");
                if context.wants(&name) {
                    let processed = bench.outage(&name, &database, load, &mut figures).await;
                    report.processed(processed.context("the database is out")?);
                }
            }
        }
        if context.wants(REAL) {
            report.processed(bench.real(&mut sizes, &mut figures).await.context("a real database")?);
        }
        report.run(figures);
    }
    promises(context, report);
    plots(context, report);
    context.drop_database(bench.postgres).await
}

fn in_flights(context: &Context) -> Vec<usize> {
    if context.quick { QUICK_IN_FLIGHT.to_vec() } else { IN_FLIGHT.to_vec() }
}

fn mixes(context: &Context) -> &'static [(&'static str, usize, usize)] {
    if context.quick { &MIXES[..1] } else { &MIXES }
}

/// What is under way while the database is out: evenly, and with long calls few of the db kind, too.
fn outages(context: &Context, hold: Duration) -> Vec<(&'static str, Load)> {
    let even = ("out", Load::of(1_000, 1, 1));
    let few_db = ("out_few_db", Load::of(1_000, 1, 10));
    if context.quick || hold < HOLDS[1].1 { vec![even] } else { vec![even, few_db] }
}

fn notes(context: &Context, report: &mut Report) {
    report.note(format!(
        "two kinds of problems: db holds one of {CONNECTIONS} connections for 1 ms or 100 ms, cpu computes for 1 ms; evenly \
         (even), 1 to 10 (few_db) and 10 to 1 (many_db); the number is how many of both are under way: whenever one ends the \
         next of its kind comes"
    ));
    report.note(
        "the database is a stand-in for one on another machine: a thread that sleeps. postgresql: a real one on this machine \
         (pg_sleep), which takes time of the cores itself, however threads are pooled: no bound is set there",
    );
    report.note(
        "pools: step pools on an agent's own cores and pools, without a farm. shared: any thread runs any step, first come first \
         served, and waits where a connection is missing; of a few sizes of that pool the one that serves both kinds best, for each \
         load by itself (shared_size)",
    );
    report.note(
        "p90: of latencies, from when a problem is handed in, after as long as what is under way then takes; those not ended \
         count with their age. Where fewer ended than are under way there is none",
    );
    report.note(
        "kept: what the cpu kind does a second, over what it does with as many under way and no db problem; before and after. \
         kept_of_left (1 ms): over what the db kind leaves of the cores: its calls cost the agent some of their time, as measured \
         when they are alone",
    );
    let seconds = context.scaled(10, 3);
    report.note(format!(
        "out: the database is out for {seconds} s, 1,000 under way, evenly (and 1 to 10: few_db), the shared pool with {} threads; calls hang, or (waiting) steps wait without a thread until it is back; after: for \
         as long as then takes what was under way, so that latencies have the outage in them",
        SHARED[1]
    ));
    report.note("lone: one problem under way; the loss at low load is what pools cost there");
}

/// How many of each kind are under way.
#[derive(Clone, Copy, Debug)]
struct Load {
    db: usize,
    cpu: usize,
}

impl Load {
    fn of(in_flight: usize, of_db: usize, of_cpu: usize) -> Load {
        // Of the fewer there is one at least.
        let part = |of: usize| (in_flight * of / (of_db + of_cpu)).max(1);
        match of_db < of_cpu {
            true => Load { db: part(of_db), cpu: in_flight - part(of_db) },
            false => Load { db: in_flight - part(of_cpu), cpu: part(of_cpu) },
        }
    }

    fn all(self) -> usize {
        self.db + self.cpu
    }

    /// For how long as many as are under way take, by and large.
    fn turnover(self, hold: Duration, cores: usize) -> Duration {
        let calls = (CONNECTIONS as f64 / hold.as_secs_f64()).min(CALLS_PER_SECOND);
        let computations = cores as f64 / THOUGHT.as_secs_f64();
        Duration::from_secs_f64((self.db as f64 / calls).max(self.cpu as f64 / computations))
    }
}

/// What one kind did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    per_second: f64,
    /// None: too little has ended to say.
    p90_ms: Option<f64>,
    ended: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    db: Done,
    cpu: Done,
    /// Of this process, for each second.
    cores_used: f64,
}

struct Cell<'a> {
    name: &'a str,
    hold_name: &'static str,
    database: &'a Arc<Database>,
    load: Load,
}

struct Bench<'a> {
    context: &'a Context,
    postgres: Postgres,
    rounds: String,
}

impl Bench<'_> {
    /// The same with PostgreSQL on this machine, which takes time of the cores itself: no bound.
    async fn real(&self, sizes: &mut HashMap<String, usize>, figures: &mut Figures) -> anyhow::Result<u64> {
        let name = REAL.to_owned();
        let database = self.database(HOLDS[1].1).await?;
        let cell =
            Cell { name: &name, hold_name: "postgresql_ms_100", database: &database, load: Load::of(1_000, 1, 1) };
        let (size, processed) = self.cell(&cell, sizes.get(&name).copied(), figures).await?;
        sizes.insert(name, size);
        Ok(processed)
    }

    async fn database(&self, hold: Duration) -> anyhow::Result<Arc<Database>> {
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let (client, task) = self.postgres.connect().await?;
            let statement = client.prepare("select pg_sleep($1)").await?;
            let runtime = tokio::runtime::Handle::current();
            connections.push(Connection::Real(Box::new(holding::Real { client, statement, runtime, _task: task })));
        }
        Ok(Database::new(hold, connections))
    }

    fn slice(&self, full_ms: u64) -> Duration {
        Duration::from_millis(self.context.scaled(full_ms, 700))
    }

    /// One load: alone, on pools, alone again; and shared, with that size or the best. Returns the size and how many were
    /// processed.
    async fn cell(&self, cell: &Cell<'_>, size: Option<usize>, figures: &mut Figures) -> anyhow::Result<(usize, u64)> {
        self.context.progress(cell.name);
        let (load, name, database) = (cell.load, cell.name, cell.database);
        let steps = Pools::Steps(Out::Hangs);
        let only_cpu = Load { db: 0, ..load };
        let turnover = self.turnover(load, database);
        let before = self.measure(database, steps, only_cpu, WARM, self.slice(750)).await?;
        let pools = self.measure(database, steps, load, turnover, self.slice(1_500).max(turnover)).await?;
        let after = self.measure(database, steps, only_cpu, WARM, self.slice(750)).await?;
        let alone = (before.cpu.per_second + after.cpu.per_second) / 2.0;
        figures.add(format!("{name}_cpu_alone_per_second"), alone);
        add(figures, &format!("{name}_pools"), &pools);
        figures.add(format!("{name}_cpu_kept_ratio"), pools.cpu.per_second / alone);
        let mut processed = [before, pools, after].iter().map(Measured::ended).sum::<u64>();
        if cell.hold_name == "ms_1" {
            let only_db = self.measure(database, steps, Load { cpu: 0, ..load }, WARM, self.slice(750)).await?;
            processed += only_db.ended();
            let each = only_db.cores_used / only_db.db.per_second.max(1.0);
            let left = 1.0 - pools.db.per_second * each / self.context.machine.cores as f64;
            figures.add(format!("{name}_db_alone_per_second"), only_db.db.per_second);
            figures.add(format!("{name}_db_core_us_each"), each * 1e6);
            figures.add(format!("{name}_cpu_kept_of_left_ratio"), pools.cpu.per_second / (alone * left));
        }
        let mut best: Option<(usize, f64)> = size.map(|size| (size, 0.0));
        for size in if size.is_some() { &[][..] } else { &SHARED } {
            let shared = self.measure(database, Pools::Shared(*size), load, WARM, self.slice(1_000)).await?;
            processed += shared.ended();
            let score = shared.cpu.per_second / alone + shared.db.per_second / pools.db.per_second.max(1.0);
            if best.as_ref().is_none_or(|(_, other)| score > *other) {
                best = Some((*size, score));
            }
        }
        let (size, _) = best.context("no size was tried")?;
        let shared = Pools::Shared(size);
        let shared = self.measure(database, shared, load, turnover, self.slice(1_000).max(turnover)).await?;
        processed += shared.ended();
        add(figures, &format!("{name}_shared"), &shared);
        figures.add(format!("{name}_shared_cpu_kept_ratio"), shared.cpu.per_second / alone);
        figures.add(format!("{name}_shared_size"), size as f64);
        Ok((size, processed))
    }

    /// For how long what is under way at first takes, after which it is as it stays.
    fn turnover(&self, load: Load, database: &Database) -> Duration {
        let turnover = load.turnover(database.hold(), self.context.machine.cores);
        if self.context.quick { WARM } else { turnover.max(WARM) }
    }

    /// One problem under way: what pools cost when there is nothing to be won.
    async fn lone(&self, hold_name: &str, database: &Arc<Database>, figures: &mut Figures) -> anyhow::Result<u64> {
        let mut processed = 0;
        for (kind, load) in [("db", Load { db: 1, cpu: 0 }), ("cpu", Load { db: 0, cpu: 1 })] {
            for (how, pools) in [("pools", Pools::Steps(Out::Hangs)), ("shared", Pools::Shared(SHARED[0]))] {
                let measured = self.measure(database, pools, load, WARM, self.slice(1_000)).await?;
                processed += measured.ended();
                let done = if kind == "db" { measured.db } else { measured.cpu };
                add_kind(figures, &format!("{hold_name}_lone_{kind}_{how}"), done);
            }
            figures.add_ratio(
                format!("{hold_name}_lone_{kind}_ratio"),
                &format!("{hold_name}_lone_{kind}_pools_per_second"),
                &format!("{hold_name}_lone_{kind}_shared_per_second"),
            );
        }
        Ok(processed)
    }

    /// The database is out for a while.
    async fn outage(
        &self,
        name: &str,
        database: &Arc<Database>,
        load: Load,
        figures: &mut Figures,
    ) -> anyhow::Result<u64> {
        let time = Duration::from_secs(self.context.scaled(10, 3));
        let only_cpu = Load { db: 0, ..load };
        let alone = self.measure(database, Pools::Steps(Out::Hangs), only_cpu, WARM, self.slice(1_500)).await?;
        let mut processed = alone.ended();
        for (how, pools) in [
            ("pools", Pools::Steps(Out::Hangs)),
            ("pools_waiting", Pools::Steps(Out::Waits)),
            ("shared", Pools::Shared(SHARED[1])),
        ] {
            self.context.progress(&format!("{name}: {how}"));
            let mut run = Run::start(self, database, pools, load)?;
            run.go_on(WARM).await;
            database.set_out(true);
            run.go_on(WARM).await;
            run.forget();
            run.go_on(time).await;
            let during = run.measured();
            database.set_out(false);
            run.forget();
            run.go_on(self.slice(1_000).max(self.turnover(load, database) * 2)).await;
            let after = run.measured();
            drop(run);
            database.quiet().await;
            processed += during.ended() + after.ended();
            let name = format!("{name}_{how}");
            add(figures, &name, &during);
            figures.add(format!("{name}_cpu_kept_ratio"), during.cpu.per_second / alone.cpu.per_second);
            add(figures, &format!("{name}_after"), &after);
            figures.add(format!("{name}_after_cpu_kept_ratio"), after.cpu.per_second / alone.cpu.per_second);
        }
        Ok(processed)
    }

    async fn measure(
        &self,
        database: &Arc<Database>,
        pools: Pools,
        load: Load,
        warm: Duration,
        time: Duration,
    ) -> anyhow::Result<Measured> {
        let mut run = Run::start(self, database, pools, load)?;
        run.go_on(warm).await;
        run.forget();
        run.go_on(time).await;
        let measured = run.measured();
        drop(run);
        database.quiet().await;
        Ok(measured)
    }
}

fn add(figures: &mut Figures, name: &str, measured: &Measured) {
    for (kind, done) in [("cpu", measured.cpu), ("db", measured.db)] {
        add_kind(figures, &format!("{name}_{kind}"), done);
    }
}

fn add_kind(figures: &mut Figures, name: &str, done: Done) {
    figures.add(format!("{name}_per_second"), done.per_second);
    if let Some(p90_ms) = done.p90_ms {
        figures.add(format!("{name}_p90_ms"), p90_ms);
    }
}

impl Measured {
    fn ended(&self) -> u64 {
        self.db.ended + self.cpu.ended
    }
}

/// Problems that are kept under way.
struct Run<'a> {
    rig: Rig,
    rounds: &'a str,
    /// By checkout and place there: whether it is of the cpu kind, and since when it is under way.
    under_way: HashMap<(usize, usize), (bool, Instant)>,
    /// Of those that ended, by kind.
    latencies: [Vec<f64>; 2],
    since: Instant,
    cpu_before: Duration,
}

impl Run<'_> {
    fn start<'a>(bench: &'a Bench<'_>, database: &Arc<Database>, pools: Pools, load: Load) -> anyhow::Result<Run<'a>> {
        let agent = holding::agent(database, pools, load.all());
        let rig = Rig::start(agent, bench.context.machine.cores)?;
        let mut run = Run {
            rig,
            rounds: &bench.rounds,
            under_way: HashMap::new(),
            latencies: [Vec::new(), Vec::new()],
            since: Instant::now(),
            cpu_before: Duration::ZERO,
        };
        // As they would come: mixed.
        let (mut db, mut cpu) = (0, 0);
        while db + cpu < load.all() {
            if cpu * load.db <= db * load.cpu && cpu < load.cpu {
                cpu += 1;
                run.hand_in(true, 1);
            } else {
                db += 1;
                run.hand_in(false, 1);
            }
        }
        Ok(run)
    }

    /// So many problems of a kind, as one checkout.
    fn hand_in(&mut self, is_cpu: bool, count: usize) {
        if count == 0 {
            return;
        }
        let now = Instant::now();
        let (controller, payload) = if is_cpu { ("think", self.rounds) } else { ("ask", "1") };
        let checkout = self.rig.check_out(controller, std::iter::repeat_n(payload, count));
        self.under_way.extend((0..count).map(|problem| ((checkout, problem), (is_cpu, now))));
    }

    /// For so long. What has ended since it was looked last is followed by as many, together, as an agent's checkouts are.
    async fn go_on(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while let Ok(first) = timeout_at(end, self.rig.ended()).await {
            let mut next = [0, 0];
            let mut ended = Some(first);
            while let Some(one) = ended {
                if let Some((is_cpu, since)) = self.under_way.remove(&(one.checkout, one.problem)) {
                    self.latencies[usize::from(is_cpu)].push(since.elapsed().as_secs_f64() * 1e3);
                    next[usize::from(is_cpu)] += 1;
                }
                ended = self.rig.try_next();
            }
            self.hand_in(false, next[0]);
            self.hand_in(true, next[1]);
        }
    }

    /// What was is of no interest.
    fn forget(&mut self) {
        self.latencies.iter_mut().for_each(Vec::clear);
        self.since = Instant::now();
        self.cpu_before = usage::of(std::process::id()).cpu;
    }

    fn measured(&self) -> Measured {
        let seconds = self.since.elapsed().as_secs_f64();
        let done = |is_cpu: bool| {
            let ended = &self.latencies[usize::from(is_cpu)];
            let mut latencies = ended.clone();
            let ages = self.under_way.values().filter(|(cpu, _)| *cpu == is_cpu);
            latencies.extend(ages.map(|(_, since)| since.elapsed().as_secs_f64() * 1e3));
            let enough = ended.len() * 2 >= latencies.len();
            Done {
                per_second: ended.len() as f64 / seconds,
                p90_ms: quantile(&latencies, 0.9).filter(|_| enough),
                ended: ended.len() as u64,
            }
        };
        let cpu = usage::of(std::process::id()).cpu.saturating_sub(self.cpu_before);
        Measured { db: done(false), cpu: done(true), cores_used: cpu.as_secs_f64() / seconds }
    }
}

/// Of each load's median the least.
fn promises(context: &Context, report: &mut Report) {
    for (hold_name, hold) in HOLDS {
        let names = in_flights(context)
            .into_iter()
            .flat_map(|in_flight| mixes(context).iter().map(move |(mix, ..)| format!("{hold_name}_{mix}_{in_flight}")));
        let names = names.filter(|name| context.wants(name)).map(|name| format!("{name}_cpu_kept_ratio"));
        let medians = names.map(|name| (report.median(&name).unwrap_or(0.0), name));
        if let Some((least, name)) = medians.min_by(|a, b| a.0.total_cmp(&b.0)) {
            report.promise(
                format!("{hold_name}: cpu_kept_ratio is at least {KEPT} under every load: {least:.3} ({name})"),
                least >= KEPT,
            );
        }
        for (out, _) in outages(context, hold) {
            for how in ["pools", "pools_waiting"] {
                let name = format!("{hold_name}_{out}");
                if context.wants(&name) {
                    report.promise_at_least(&format!("{name}_{how}_cpu_kept_ratio"), KEPT);
                }
            }
        }
    }
}

fn plots(context: &Context, report: &mut Report) {
    for (hold_name, _) in HOLDS {
        let of = |figure: &str| {
            let point = |in_flight: usize| {
                let value = report.median(&format!("{hold_name}_even_{in_flight}_{figure}"))?;
                Some((in_flight as f64, value))
            };
            in_flights(context).into_iter().filter_map(point).collect::<Vec<_>>()
        };
        let series = vec![
            ("step pools".to_owned(), of("cpu_kept_ratio")),
            ("one shared pool, of the best size".to_owned(), of("shared_cpu_kept_ratio")),
        ];
        report.plot(Plot {
            name: hold_name.to_owned(),
            title: format!("What the cpu kind keeps beside as many that hold a connection ({hold_name})"),
            y: "of its throughput alone".to_owned(),
            kind: PlotKind::Lines { x: "problems under way".to_owned(), logarithmic: true, series },
        });
    }
}
