//! Table `scale`: one server with ever more workstations connected, ever more open jobs and ever deeper queues. What a
//! hand-out costs must not grow with any of them; a server that is killed has everybody back within a minute.

use crate::context::{Context, Database};
use crate::farm::{Farm, Server};
use crate::light::{Herd, Nothing, Pace};
use crate::plot::{Kind, Plot};
use crate::pointer::PAYLOAD;
use crate::report::{Figures, Report, quantile};
use crate::truth;
use crate::usage;
use anyhow::{Context as _, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Hand-outs a second, whatever the number of workstations: each holds its checkout for longer, the more there are.
const RATE: f64 = 500.0;

/// Workstations while jobs and depth are varied.
const SOME: usize = 100;

/// Descriptors beside one a connection.
const OTHER_FILES: u64 = 200;

/// Until a herd has connected, or is back.
const CONNECT_WAIT: Duration = Duration::from_secs(120);
const BACK_LIMIT: Duration = Duration::from_secs(60);

/// Longer than a burst should take, so that nobody asks twice in it.
const BURST_HOLD: Duration = Duration::from_secs(10);

/// All of them draw at the same instant.
const BURST_LIMIT_MS: f64 = 1000.0;

/// Of the server, at any time.
const MEMORY_LIMIT_MIB: f64 = 1536.0;

const LEASE: Duration = Duration::from_secs(20);

/// Longer than a lease.
const OUTAGE: Duration = Duration::from_secs(30);

/// Disk a problem: its row, its checkout and its result.
const BYTES_EACH: u64 = 1_500;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let sizes: &[usize] = if context.quick { &[10, 100, 500] } else { &[10, 100, 1_000, 10_000] };
    let jobs: &[u64] = if context.quick { &[1, 100] } else { &[1, 10, 100, 1_000, 10_000] };
    let depths: &[u64] = if context.quick { &[10_000, 100_000] } else { &[10_000, 100_000, 1_000_000] };
    let most = sizes.last().copied().unwrap_or(0);
    let sizes = if context.wants("workstations") { within_descriptors(sizes, report) } else { Vec::new() };
    let jobs = if context.wants("jobs") { jobs } else { &[] };
    let depths = if context.wants("depth") { depths } else { &[] };
    let deepest = depths.iter().copied().max().unwrap_or(0);
    context.need_disk(deepest * BYTES_EACH, "scale")?;
    report.note(format!(
        "light agents in one process, a connection each, beating every 5 s, or 10 while they hold nothing; \
         checkouts of one problem, held so long that all workstations together take {RATE} a second, delivered and \
         acknowledged"
    ));
    report.note("cost: time on the cores of server and PostgreSQL for a hand-out and its result, less what the same farm uses idle");
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        for &workstations in &sizes {
            let largest = sizes.last() == Some(&workstations);
            with_workstations(context, report, &mut figures, workstations, largest).await?;
        }
        for &depth in depths {
            with_queue(context, report, &mut figures, 1, depth, &format!("depth_{depth}")).await?;
        }
        for &jobs in jobs {
            let each = (12 * RATE as u64 * seconds(context) / 10).div_ceil(jobs).max(10);
            with_queue(context, report, &mut figures, jobs, each, &format!("jobs_{jobs}")).await?;
        }
        report.run(figures);
    }
    if context.wants("workstations") {
        promise_workstations(report, most);
    }
    let depths: Vec<usize> = depths.iter().map(|&n| n as usize).collect();
    let jobs: Vec<usize> = jobs.iter().map(|&n| n as usize).collect();
    for (by, of, points) in
        [("workstations", "workstations", &sizes), ("jobs", "open jobs", &jobs), ("depth", "problems queued", &depths)]
    {
        growth(report, by, of, points);
    }
    Ok(())
}

/// Where so many do not fit, it is not measured, and not kept.
fn promise_workstations(report: &mut Report, most: usize) {
    report.promise_at_most(&format!("workstations_{most}_memory_peak_mib"), MEMORY_LIMIT_MIB);
    report.promise_at_most("restart_memory_peak_mib", MEMORY_LIMIT_MIB);
    report.promise_at_most(&format!("workstations_{most}_idle_server_core_percent"), 10.0);
    report.promise_at_most(&format!("workstations_{most}_hand_out_p99_ms"), 1000.0);
    report.promise_at_most("burst_99_percent_ms", BURST_LIMIT_MS);
    report.promise_at_most("restart_back_s", BACK_LIMIT.as_secs_f64());
    report.promise_at_most("restart_declared_dead_count", 0.0);
    report.promise_at_most("restart_lost_checkouts_count", 0.0);
}

/// How long each figure is measured for.
fn seconds(context: &Context) -> u64 {
    context.scaled(8, 3)
}

/// Raises the limit of open files, and leaves out what it does not allow.
fn within_descriptors(sizes: &[usize], report: &mut Report) -> Vec<usize> {
    let before = getrlimit(Resource::Nofile);
    // What cannot be raised is found to be too low below.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let (fit, large): (Vec<usize>, Vec<usize>) =
        sizes.iter().partition(|&&workstations| workstations as u64 + OTHER_FILES <= limit);
    for workstations in large {
        let why = format!("the limit of open files is {limit} (ulimit -Hn): each connection needs one at either end");
        report.skip(format!("{workstations} workstations"), why);
    }
    fit
}

/// A server with a herd of light agents.
struct Site {
    database: Database,
    farm: Farm,
    server: Server,
    herd: Herd,
    workstations: usize,
    postmaster: u32,
}

/// Time on the cores so far, and when.
#[derive(Clone, Copy)]
struct Clock {
    at: Instant,
    server: Duration,
    postgresql: Duration,
    hand_outs: u64,
}

/// What happened between two looks.
struct Span {
    seconds: f64,
    server: f64,
    postgresql: f64,
    hand_outs: f64,
}

impl Site {
    /// Everybody connects at once; says how long that took.
    async fn start(context: &Context, workstations: usize) -> anyhow::Result<(Site, Duration)> {
        let database = context.farm_database().await?;
        let (client, _connection) = database.connect().await?;
        client.batch_execute(&format!("set search_path = public; {PAYLOAD}; reset search_path")).await?;
        client.execute("select pcfarm.create_job_type('noop', 'echo')", &[]).await?;
        let farm = context.farm(&database);
        let connections = (workstations + 100).to_string();
        let lease = LEASE.as_secs().to_string();
        let flags = ["--lease", &lease, "--heartbeat", "5", "--checkout-seconds", "15", "--pool-size", "16"];
        let limits = ["--connections", &connections, "--connections-per-address", &connections];
        let server = farm.serving("server", &[&flags[..], &limits[..]].concat()).await;
        let herd = Herd::start(&[server.url()], workstations, Arc::new(Nothing));
        let took = herd.connected(workstations, CONNECT_WAIT).await?;
        let postmaster = context.postmaster().await?;
        Ok((Site { database, farm, server, herd, workstations, postmaster }, took))
    }

    fn look(&self) -> Clock {
        Clock {
            at: Instant::now(),
            server: self.server.program.pid().map(usage::of).unwrap_or_default().cpu,
            postgresql: usage::of_family(self.postmaster).cpu,
            hand_outs: self.herd.book.hand_outs(),
        }
    }

    fn since(&self, before: Clock) -> Span {
        let now = self.look();
        Span {
            seconds: now.at.duration_since(before.at).as_secs_f64(),
            server: now.server.saturating_sub(before.server).as_secs_f64(),
            postgresql: now.postgresql.saturating_sub(before.postgresql).as_secs_f64(),
            hand_outs: (now.hand_outs - before.hand_outs) as f64,
        }
    }

    async fn measure(&self, seconds: u64) -> anyhow::Result<Span> {
        let before = self.look();
        sleep(Duration::from_secs(seconds)).await;
        ensure!(self.memory_mib() > 0.0, "the server has ended; it said:\n{}", last_words(self));
        Ok(self.since(before))
    }

    fn memory_mib(&self) -> f64 {
        let usage = self.server.program.pid().map(usage::of).unwrap_or_default();
        usage.memory_bytes as f64 / f64::from(1 << 20)
    }

    /// The most that the server has had since it was started.
    fn add_memory_peak(&self, name: &str, figures: &mut Figures) {
        if let Some(peak) = self.server.program.pid().and_then(usage::peak_bytes) {
            figures.add(format!("{name}_memory_peak_mib"), peak as f64 / f64::from(1 << 20));
        }
    }

    /// Jobs of so many problems each.
    async fn load(&self, jobs: u64, problems: u64) -> anyhow::Result<()> {
        let (client, _connection) = self.database.connect().await?;
        client.batch_execute("set statement_timeout = 0").await?;
        // A transaction each: one of all would run out of locks.
        let load = format!(
            "do $$ begin for n in 1..{jobs} loop
                perform pcfarm.load(pcfarm.create_job('no-ops ' || n, 'noop'),
                    'select n::text as key, public.pcfarm_payload(n) as payload from generate_series(1::bigint, {problems}) n', 1);
                commit;
             end loop; end $$"
        );
        client.batch_execute(&load).await.context("loading")?;
        client.batch_execute("vacuum (analyze)").await?;
        client.batch_execute("checkpoint").await.context("settling")
    }

    /// Opens whatever was loaded.
    async fn open(&self) -> anyhow::Result<()> {
        let (client, _connection) = self.database.connect().await?;
        let open = "do $$ declare job bigint; begin
                for job in select job_id from pcfarm.job where state = 'loading' loop perform pcfarm.open_job(job); commit; end loop;
            end $$";
        client.batch_execute(open).await.context("opening")
    }

    /// All draw work, together [`RATE`] a second.
    fn draw(&self) {
        let hold = Duration::from_secs_f64(self.workstations as f64 / RATE);
        self.herd.pace(Pace { draw: true, spread: hold, hold });
    }

    /// Lets them finish what they hold, and checks that nothing was lost on the way.
    async fn end(self, context: &Context) -> anyhow::Result<()> {
        self.herd.pace(Pace::default());
        ensure!(self.herd.book.refused() == 0, "{} deliveries were refused", self.herd.book.refused());
        let (client, _connection) = self.database.connect().await?;
        client.batch_execute("set statement_timeout = 0; analyze").await?;
        let found = truth::violations(&client).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        ensure!(found.is_empty(), "invariants are broken: {}", found.join("; "));
        let Site { database, farm, server, herd, .. } = self;
        drop((herd, server, farm));
        context.drop_database(database).await
    }
}

/// What one hand-out costs, in microseconds, beyond what the farm uses when nothing is handed out.
fn add_cost(figures: &mut Figures, name: &str, idle: &Span, busy: &Span) {
    let beyond = |busy_seconds: f64, idle_seconds: f64| {
        (busy_seconds - idle_seconds / idle.seconds * busy.seconds).max(0.0) * 1e6 / busy.hand_outs
    };
    let (server, postgresql) = (beyond(busy.server, idle.server), beyond(busy.postgresql, idle.postgresql));
    figures.add(format!("{name}_hand_outs_per_second"), busy.hand_outs / busy.seconds);
    figures.add(format!("{name}_server_us_each"), server);
    figures.add(format!("{name}_postgresql_us_each"), postgresql);
    figures.add(format!("{name}_cost_us_each"), server + postgresql);
}

fn add_waits(figures: &mut Figures, name: &str, waits: &[f64]) {
    for (place, at) in [("p50", 0.5), ("p99", 0.99)] {
        if let Some(wait) = quantile(waits, at) {
            figures.add(format!("{name}_{place}_ms"), wait);
        }
    }
}

async fn with_workstations(
    context: &Context,
    report: &mut Report,
    figures: &mut Figures,
    workstations: usize,
    largest: bool,
) -> anyhow::Result<()> {
    let name = format!("workstations_{workstations}");
    let (site, connecting) = Site::start(context, workstations).await?;
    figures.add(format!("{name}_connect_s"), connecting.as_secs_f64());
    sleep(Duration::from_secs(context.scaled(5, 2))).await; // what connecting has left behind
    // What is promised is measured for longer.
    let idle = site.measure(if largest { 2 * seconds(context) } else { seconds(context) }).await?;
    figures.add(format!("{name}_idle_server_core_percent"), idle.server / idle.seconds * 100.0);
    figures.add(format!("{name}_idle_postgresql_core_percent"), idle.postgresql / idle.seconds * 100.0);

    if largest {
        burst(&site, figures).await?;
    }
    // Whoever draws holds a checkout: some are out beside those that are counted.
    let problems = (RATE * 4.0 * seconds(context) as f64) as u64 + 4 * workstations as u64;
    site.load(1, problems).await?;
    site.open().await?;
    site.draw();
    let hold = workstations as f64 / RATE;
    sleep(Duration::from_secs_f64((2.0 * hold).max(2.0))).await; // everybody has drawn
    drop(site.herd.book.waits_ms());
    let busy = site.measure(seconds(context)).await?;
    add_waits(figures, &format!("{name}_hand_out"), &site.herd.book.waits_ms());
    add_cost(figures, &name, &idle, &busy);
    figures.add(format!("{name}_memory_mib"), site.memory_mib());
    site.add_memory_peak(&name, figures);
    report.processed(site.herd.book.accepted());
    if !largest {
        return site.end(context).await;
    }
    report.note(format!(
        "memory_peak: the most that the server has had since it was started; burst and restart: {workstations} workstations, all of which hold or draw work; restart: the server is killed, and started \
         again {} s later, from when on its times are; a lease is {} s",
        OUTAGE.as_secs(),
        LEASE.as_secs()
    ));
    restart(site, figures).await?.end(context).await
}

/// Kills the server while everybody holds or draws work, and starts it again when everybody's lease would be over, if it ran on:
/// it must not, while nobody could have heard them.
async fn restart(mut site: Site, figures: &mut Figures) -> anyhow::Result<Site> {
    site.server.program.kill();
    sleep(OUTAGE).await;
    let started = Instant::now();
    site.server.start().await;
    figures.add("restart_server_answers_s", started.elapsed().as_secs_f64());
    site.herd.connected(site.workstations, CONNECT_WAIT).await?;
    figures.add("restart_back_s", started.elapsed().as_secs_f64());
    // Whoever was to be declared dead would be by now.
    sleep(LEASE + Duration::from_secs(5)).await;
    let dead = site.server.program.log().matches("workstation declared dead").count();
    let lost = "select count(*) from pcfarm.checkout where ending = 'revoked' and reason like 'lost with workstation%'";
    let now = "select count(*) from pcfarm.workstation where state = 'dead'";
    figures.add("restart_declared_dead_count", dead as f64);
    site.add_memory_peak("restart", figures);
    figures.add("restart_lost_checkouts_count", (site.farm.number(lost).await + site.farm.number(now).await) as f64);
    Ok(site)
}

/// Everybody waits with empty hands when a job is opened.
async fn burst(site: &Site, figures: &mut Figures) -> anyhow::Result<()> {
    let everybody = site.workstations as u64;
    site.herd.pace(Pace { draw: true, spread: Duration::ZERO, hold: BURST_HOLD });
    site.load(1, everybody).await?;
    sleep(Duration::from_secs(2)).await; // all have asked
    let before = site.herd.book.hand_outs();
    let opened = Instant::now();
    site.open().await?;
    for (name, share) in [("burst_half_ms", 0.5), ("burst_99_percent_ms", 0.99)] {
        while ((site.herd.book.hand_outs() - before) as f64) < everybody as f64 * share {
            ensure!(
                opened.elapsed() < CONNECT_WAIT,
                "{} of {everybody} were handed out within {CONNECT_WAIT:?}, {} connected; the server said:\n{}",
                site.herd.book.hand_outs() - before,
                site.herd.book.connected(),
                last_words(site)
            );
            sleep(Duration::from_millis(1)).await;
        }
        figures.add(name, opened.elapsed().as_secs_f64() * 1e3);
    }
    while site.herd.book.accepted() < everybody {
        ensure!(opened.elapsed() < CONNECT_WAIT, "the burst was not done within {CONNECT_WAIT:?}");
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

fn last_words(site: &Site) -> String {
    let log = site.server.program.log();
    let worth = |line: &&str| !line.contains("workstation connected") && !line.contains("connection ended");
    let mut lines: Vec<&str> = log.lines().rev().filter(worth).take(20).collect();
    lines.reverse();
    lines.join("\n")
}

/// So many open jobs of so many problems each.
async fn with_queue(
    context: &Context,
    report: &mut Report,
    figures: &mut Figures,
    jobs: u64,
    problems: u64,
    name: &str,
) -> anyhow::Result<()> {
    let (site, _) = Site::start(context, SOME).await?;
    let idle = site.measure(seconds(context)).await?;
    site.load(jobs, problems).await?;
    site.open().await?;
    site.draw();
    sleep(Duration::from_secs(1)).await;
    drop(site.herd.book.waits_ms());
    let busy = site.measure(seconds(context)).await?;
    add_waits(figures, &format!("{name}_hand_out"), &site.herd.book.waits_ms());
    add_cost(figures, name, &idle, &busy);
    report.processed(site.herd.book.accepted());
    site.end(context).await
}

/// Draws what a hand-out costs, and promises that it does not grow from the fewest to the most.
fn growth(report: &mut Report, by: &str, of: &str, points: &[usize]) {
    let cost = |part: &str| -> Vec<(f64, f64)> {
        let point = |n: &usize| Some((*n as f64, report.median(&format!("{by}_{n}_{part}_us_each"))?));
        points.iter().filter_map(point).collect()
    };
    let whole = cost("cost");
    let series = vec![
        ("both".to_owned(), whole.clone()),
        ("server".to_owned(), cost("server")),
        ("PostgreSQL".to_owned(), cost("postgresql")),
    ];
    if let (Some(first), Some(last)) = (whole.first(), whole.last()) {
        let kept = last.1 <= first.1 * GROWTH_LIMIT;
        report.promise(
            format!("a hand-out at {} {of} costs at most {GROWTH_LIMIT} times one at {}", last.0, first.0),
            kept,
        );
    }
    if whole.len() < 2 {
        return; // nothing to compare
    }
    report.plot(Plot {
        name: by.to_owned(),
        title: format!("What a hand-out costs, by {of}"),
        y: "microseconds of a core".to_owned(),
        kind: Kind::Lines { x: of.to_owned(), logarithmic: true, series },
    });
}

/// Costs are measured on a machine that does other things, too; what grows with numbers grows a hundredfold.
const GROWTH_LIMIT: f64 = 1.3;
