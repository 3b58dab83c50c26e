//! Table `recovery`: how long it takes until work goes on after agents, servers and PostgreSQL have died or fallen silent,
//! with the farm's usual lease. The longest time counts, not the mean.

use crate::context::Context;
use crate::farm::{Farm, Server};
use crate::light::{Herd, Nothing, Pace, Work};
use crate::postgres;
use crate::program::Program;
use crate::report::{Figures, Report, quantile};
use anyhow::{Context as _, ensure};
use pcfarm_sql::cluster::Cluster;
use pcfarm_sql::connect::connect;
use pcfarm_sql::testing::url_of;
use rand::RngExt;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

/// As a farm has them by default, and shorter ones for a quick look.
struct Rhythm {
    lease: Duration,
    heartbeat: Duration,
}

impl Rhythm {
    fn of(context: &Context) -> Rhythm {
        let seconds = |full, quick| Duration::from_secs(context.scaled(full, quick));
        Rhythm { lease: seconds(20, 4), heartbeat: seconds(5, 1) }
    }

    fn flags(&self) -> [String; 4] {
        let (lease, heartbeat) = (self.lease.as_secs().to_string(), self.heartbeat.as_secs().to_string());
        ["--lease".to_owned(), lease, "--heartbeat".to_owned(), heartbeat]
    }
}

/// Beside a heartbeat and a lease.
const DETECTION_SECONDS: f64 = 2.0;

/// Bounds, in seconds, and a share of the convoys in hand.
const CLOSED_SOCKETS_SECONDS: f64 = 2.0;
const SILENT_SERVER_SECONDS: f64 = 15.0;
const SERVICE_SECONDS: f64 = 5.0;
const REQUEUED_PERCENT: f64 = 1.0;

const REAL_AGENTS: usize = 10;

/// Longer than a run.
const HELD: Duration = Duration::from_secs(3600);

const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let rhythm = Rhythm::of(context);
    report.note(format!(
        "lease {} s, heartbeat {} s; times are from the moment at which somebody is killed or falls silent, and the longest \
         of each run counts",
        rhythm.lease.as_secs(),
        rhythm.heartbeat.as_secs()
    ));
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        let (silenced, in_front) = (context.scaled(200, 20) as usize, context.scaled(5_000, 200) as usize);
        context.progress("agents that die");
        deaths(context, report, &mut figures, &Deaths { silenced, in_front, kill_server: false }).await?;
        context.progress("agents that die, and a server with them");
        deaths(context, report, &mut figures, &Deaths { silenced, in_front: 0, kill_server: true }).await?;
        context.progress("servers that die");
        servers(context, report, &mut figures).await?;
        context.progress("PostgreSQL that is away");
        outage(context, report, &mut figures, Outage::Down).await?;
        outage(context, report, &mut figures, Outage::Frozen).await?;
        report.run(figures);
    }
    let bound = (rhythm.heartbeat + rhythm.lease).as_secs_f64() + DETECTION_SECONDS;
    for name in
        ["silenced_max_s", "killed_max_s", "silenced_with_a_server_killed_max_s", "killed_with_a_server_killed_max_s"]
    {
        report.promise_always_at_most(name, bound);
    }
    report.promise_always_at_most("server_killed_work_goes_on_max_s", CLOSED_SOCKETS_SECONDS);
    report.promise_always_at_most("server_silent_work_goes_on_max_s", SILENT_SERVER_SECONDS);
    for outage in [Outage::Down, Outage::Frozen] {
        report.promise_always_at_most(&format!("postgresql_{}_requeued_percent", outage.name()), REQUEUED_PERCENT);
        report.promise_always_at_most(&format!("postgresql_{}_service_s", outage.name()), SERVICE_SECONDS);
    }
    Ok(())
}

/// A PostgreSQL of its own, which can be hurt, and a farm on it.
struct Site {
    cluster: Cluster,
    farm: Farm,
    servers: Vec<Server>,
}

impl Site {
    async fn start(context: &Context, connections: usize) -> anyhow::Result<Site> {
        let cluster = context.cluster_of_its_own().await?;
        cluster.create_database_if_missing("farm").await?;
        let mut config = cluster.config();
        config.dbname("farm");
        {
            let (mut client, _connection) = connect(&config).await?;
            pcfarm_sql::migrate::migrate(&mut client).await.context("migrating")?;
            let types =
                "select pcfarm.create_job_type(n, n, '{\"max_attempts\": 100}') from unnest(array['echo', 'digest']) n";
            client.batch_execute(types).await.context("making job types")?;
        }
        let farm = Farm::at(url_of(&config), config);
        let (rhythm, connections) = (Rhythm::of(context).flags(), (connections + 100).to_string());
        let mut flags: Vec<&str> = rhythm.iter().map(String::as_str).collect();
        flags.extend(["--checkout-problems", "1", "--checkout-seconds", "15", "--pool-size", "13"]);
        flags.extend(["--connections", &connections, "--connections-per-address", &connections]);
        let servers = vec![farm.serving("a", &flags).await, farm.serving("b", &flags).await];
        Ok(Site { cluster, farm, servers })
    }

    fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    fn agents(&self) -> Vec<Program> {
        let servers: Vec<&Server> = self.servers.iter().collect();
        (0..REAL_AGENTS).map(|n| self.farm.working(&format!("real-{n}"), &servers)).collect()
    }

    async fn submit(&self, job_type: &str, problems: usize, ms: u64) {
        let query = format!(
            "select i::text as key, jsonb_build_object('n', i, 'ms', {ms}) as payload from generate_series(1, {problems}) i"
        );
        self.farm.submit(job_type, &query, 1).await;
    }

    /// Polls until a query says true.
    async fn until(&self, what: &str, text: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(rows) = self.farm.try_query(text, &[]).await
                && rows.first().is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
            {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "after {PATIENCE:?} not {what}\n{}", self.farm.state().await);
            sleep(POLL).await;
        }
    }
}

struct Deaths {
    silenced: usize,
    /// Checkouts of others, made before and held all the time.
    in_front: usize,
    kill_server: bool,
}

/// A farm on which some will die, and enough others wait for what they had.
struct Doomed {
    site: Site,
    dying: Herd,
    real: Vec<Program>,
    /// Those who hold what is in front, and those who wait.
    _others: Vec<Herd>,
}

/// Everybody has work who shall have some.
async fn doomed(context: &Context, deaths: &Deaths) -> anyhow::Result<Doomed> {
    let Deaths { silenced, in_front, .. } = *deaths;
    let spares = silenced + 20;
    let site = Site::start(context, in_front + silenced + 2 * spares).await?;
    let held = Pace { draw: true, spread: Duration::ZERO, hold: HELD };

    let healthy = Herd::named("healthy", &site.urls(), in_front, Arc::new(Nothing));
    healthy.connected(in_front, PATIENCE).await?;
    site.submit("echo", in_front + silenced, 0).await;
    healthy.pace(held);
    site.until("all in front handed out", &format!("select count(*) >= {in_front} from pcfarm.checkout")).await?;
    let dying = Herd::named("dying", &site.urls(), silenced, Arc::new(Nothing));
    dying.connected(silenced, PATIENCE).await?;
    dying.pace(held);
    let real = site.agents();
    let all = in_front + silenced;
    site.until("all handed out", &format!("select count(*) >= {all} from pcfarm.checkout where job_type = 'echo'"))
        .await?;
    site.submit("digest", 2 * REAL_AGENTS, HELD.as_millis() as u64).await;
    let each = format!(
        "select count(distinct workstation_id) >= {REAL_AGENTS} from pcfarm.checkout where job_type = 'digest' and ended_at is null"
    );
    site.until("every real agent at work", &each).await?;
    let mut others = vec![
        Herd::named("spare", &site.urls(), spares, Arc::new(Nothing)),
        Herd::named("spare-digest", &site.urls(), 3 * REAL_AGENTS, Arc::new(Digest)),
    ];
    for herd in &others {
        herd.connected(herd.agents(), PATIENCE).await?;
        herd.pace(held);
    }
    others.push(healthy);
    Ok(Doomed { site, dying, real, _others: others })
}

/// Light agents fall silent, their connections open, and real ones are killed, at random moments of a lease. Returns the
/// moments.
async fn kill(doomed: &mut Doomed, deaths: &Deaths, lease: Duration) -> HashMap<String, SystemTime> {
    let Deaths { silenced, kill_server, .. } = *deaths;
    let mut moments: Vec<(f64, Option<usize>, usize)> = Vec::new();
    {
        let mut random = rand::rng();
        let mut within_a_lease = || random.random_range(0.0..lease.as_secs_f64());
        moments.extend((0..silenced).map(|n| (within_a_lease(), None, n)));
        moments.extend((0..REAL_AGENTS).map(|n| (within_a_lease(), Some(n), n)));
    }
    moments.sort_by(|a, b| a.0.total_cmp(&b.0));
    let began = Instant::now();
    let mut gone: HashMap<String, SystemTime> = HashMap::new();
    for (after, real_agent, number) in moments {
        if kill_server && gone.len() == silenced / 2 {
            doomed.site.servers[0].program.kill();
        }
        sleep(Duration::from_secs_f64(after).saturating_sub(began.elapsed())).await;
        let name = match real_agent {
            Some(agent) => {
                doomed.real[agent].kill();
                format!("real-{number}")
            }
            None => {
                doomed.dying.silence(number);
                format!("dying-{number}")
            }
        };
        gone.insert(name, SystemTime::now());
    }
    gone
}

/// Waits until all that the dead had is in others' hands. Returns how long each one's was not, in seconds, of those who
/// fell silent and of those who were killed.
async fn handed_out_again(site: &Site, gone: &HashMap<String, SystemTime>) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let lost = "select count(*) = 0 from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
        where c.ended_at is null and (w.hostname like 'dying-%' or w.hostname like 'real-%')";
    site.until("everything taken from the dead", lost).await?;
    let waiting = "select coalesce(sum(waiting), 0) = 0 from pcfarm.job_progress";
    site.until("everything handed out again", waiting).await?;
    let text = "with held as materialized (
            select h.job_id, h.problem_id, c.checkout_id, c.checked_out_at, w.hostname
            from pcfarm.held_problem h join pcfarm.checkout c using (checkout_id)
            join pcfarm.workstation w on w.workstation_id = c.workstation_id)
        select a.hostname, max(b.checked_out_at) from held a
        join lateral (select b.checked_out_at from held b
            where b.job_id = a.job_id and b.problem_id = a.problem_id and b.checkout_id > a.checkout_id
            order by b.checkout_id limit 1) b on true
        where a.hostname like 'dying-%' or a.hostname like 'real-%' group by 1";
    let (client, _connection) = connect_to(site).await?;
    client.batch_execute("set statement_timeout = 0; set enable_nestloop = off").await?;
    let (mut of_silenced, mut of_killed) = (Vec::new(), Vec::new());
    for row in client.query(text, &[]).await.context("reading when it was handed out again")? {
        let (name, again): (&str, SystemTime) = (row.get(0), row.get(1));
        let Some(at) = gone.get(name) else { continue };
        let took = again.duration_since(*at).unwrap_or_default().as_secs_f64();
        if name.starts_with("real") { of_killed.push(took) } else { of_silenced.push(took) }
    }
    Ok((of_silenced, of_killed))
}

/// How long it takes until the work of those who die is in others' hands.
async fn deaths(context: &Context, report: &mut Report, figures: &mut Figures, deaths: &Deaths) -> anyhow::Result<()> {
    let Deaths { silenced, in_front, kill_server } = *deaths;
    let mut doomed = doomed(context, deaths).await?;
    let gone = kill(&mut doomed, deaths, Rhythm::of(context).lease).await;
    let site = &doomed.site;
    let (of_silenced, of_killed) = handed_out_again(site, &gone).await?;
    ensure!(of_silenced.len() == silenced, "{} of {silenced} silenced agents' work came back", of_silenced.len());
    ensure!(of_killed.len() == REAL_AGENTS, "{} of {REAL_AGENTS} killed agents' work came back", of_killed.len());
    let (silenced_name, killed_name) = match kill_server {
        true => ("silenced_with_a_server_killed", "killed_with_a_server_killed"),
        false => ("silenced", "killed"),
    };
    for (name, times) in [(silenced_name, &of_silenced), (killed_name, &of_killed)] {
        figures.add(format!("{name}_p50_s"), quantile(times, 0.5).unwrap_or_default());
        figures.add(format!("{name}_max_s"), quantile(times, 1.0).unwrap_or_default());
    }
    if !kill_server {
        let taken = "select count(*) from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
            where c.ending = 'revoked' and w.hostname like 'healthy-%'";
        figures.add("healthy_checkouts_revoked_count", site.farm.number(taken).await as f64);
        report.note(format!(
            "silenced: {silenced} light agents that fall silent with their connections open; killed: {REAL_AGENTS} real ones; \
             {in_front} healthy checkouts before theirs"
        ));
    }
    report.processed((in_front + silenced) as u64);
    Ok(())
}

/// What light agents say that they can run, in the place of real ones.
#[derive(Debug)]
struct Digest;

impl Work for Digest {
    fn controller(&self) -> &'static str {
        "digest"
    }

    fn solve(
        &self,
        _author: &str,
        _checkout_id: i64,
        _problem: &pcfarm_proto::v1::Problem,
    ) -> pcfarm_proto::v1::problem_result::Outcome {
        pcfarm_proto::v1::problem_result::Outcome::Solution(bytes::Bytes::from_static(b"{}"))
    }

    fn told(&self, _delivered: crate::light::Delivered, _accepted: bool) {}
}

async fn connect_to(site: &Site) -> anyhow::Result<(tokio_postgres::Client, pcfarm_sql::connect::ConnectionTask)> {
    let mut config = site.cluster.config();
    config.dbname("farm");
    connect(&config).await.context("connecting to the database")
}

/// A server dies with its connections, and another one falls silent with them open: how long until its agents have work
/// from the other one.
async fn servers(context: &Context, report: &mut Report, figures: &mut Figures) -> anyhow::Result<()> {
    let mut site = Site::start(context, REAL_AGENTS).await?;
    site.servers[1].program.kill();
    let agents = site.agents();
    site.submit("digest", 100_000, 50).await;
    let at_work = format!("select count(distinct workstation_id) = {REAL_AGENTS} from pcfarm.in_progress");
    site.until("everybody at work", &at_work).await?;
    site.servers[1].start().await;

    site.servers[0].program.kill();
    figures.add("server_killed_work_goes_on_max_s", at_work_again(&site, SystemTime::now()).await?);
    site.servers[0].start().await;

    site.servers[1].program.freeze();
    figures.add("server_silent_work_goes_on_max_s", at_work_again(&site, SystemTime::now()).await?);
    site.servers[1].program.thaw();
    report
        .processed(site.farm.number("select coalesce(sum(done), 0)::bigint from pcfarm.progress").await.unsigned_abs());
    drop(agents);
    Ok(())
}

/// Seconds until every workstation has got a checkout since.
async fn at_work_again(site: &Site, since: SystemTime) -> anyhow::Result<f64> {
    let text = "select count(*), max(first) from (
            select min(c.checked_out_at) as first from pcfarm.checkout c where c.checked_out_at > $1 group by c.workstation_id) f";
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(rows) = site.farm.try_query(text, &[&since]).await
            && let Some(row) = rows.first().filter(|row| row.get::<_, i64>(0) == REAL_AGENTS as i64)
        {
            let last: SystemTime = row.get(1);
            return Ok(last.duration_since(since).unwrap_or_default().as_secs_f64());
        }
        ensure!(Instant::now() < deadline, "not everybody works again\n{}", site.farm.state().await);
        sleep(POLL).await;
    }
}

#[derive(Clone, Copy)]
enum Outage {
    Down,
    Frozen,
}

impl Outage {
    fn name(self) -> &'static str {
        match self {
            Outage::Down => "down",
            Outage::Frozen => "frozen",
        }
    }
}

/// PostgreSQL is killed, or stands still, for twice the lease.
async fn outage(context: &Context, report: &mut Report, figures: &mut Figures, outage: Outage) -> anyhow::Result<()> {
    let rhythm = Rhythm::of(context);
    let light = context.scaled(500, 50) as usize;
    let mut site = Site::start(context, light).await?;
    let agents = site.agents();
    let herd = Herd::named("light", &site.urls(), light, Arc::new(Nothing));
    herd.connected(light, PATIENCE).await?;
    site.submit("echo", 100_000, 0).await;
    site.submit("digest", 100_000, 50).await;
    herd.pace(Pace { draw: true, spread: rhythm.heartbeat, hold: rhythm.heartbeat });
    site.until("at work", &format!("select count(*) > {} from pcfarm.checkout", 2 * light)).await?;

    let (live, newest) = {
        let text = "select count(*) filter (where ended_at is null), max(checkout_id) from pcfarm.checkout";
        let row = site.farm.query(text, &[]).await.remove(0);
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    match outage {
        Outage::Down => {
            site.cluster.crash().await?;
            sleep(rhythm.lease * 2).await;
            site.cluster.start_again().await?;
        }
        Outage::Frozen => {
            let frozen = postgres::freeze(site.cluster.directory())?;
            sleep(rhythm.lease * 2).await;
            postgres::thaw(&frozen);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while connect_to(&site).await.is_err() {
        ensure!(Instant::now() < deadline, "PostgreSQL does not come back");
        sleep(POLL).await;
    }
    let back = SystemTime::now();
    let text = "select min(c.checked_out_at) from pcfarm.checkout c where c.checked_out_at > $1";
    let served = loop {
        if let Ok(rows) = site.farm.try_query(text, &[&back]).await
            && let Some(first) = rows.first().and_then(|row| row.get::<_, Option<SystemTime>>(0))
        {
            break first.duration_since(back).unwrap_or_default().as_secs_f64();
        }
        ensure!(Instant::now() < deadline, "nothing is handed out any more\n{}", site.farm.state().await);
        sleep(POLL).await;
    };
    // Whoever would be taken to be dead would be by now.
    sleep(rhythm.lease + rhythm.heartbeat).await;
    let revoked = format!("select count(*) from pcfarm.checkout where ending = 'revoked' and checkout_id <= {newest}");
    let requeued = site.farm.number(&revoked).await as f64 / live.max(1) as f64 * 100.0;
    let name = outage.name();
    figures.add(format!("postgresql_{name}_live_checkouts_count"), live as f64);
    figures.add(format!("postgresql_{name}_requeued_percent"), requeued);
    figures.add(format!("postgresql_{name}_service_s"), served);
    report.processed(herd.book.accepted());
    drop(agents);
    Ok(())
}
