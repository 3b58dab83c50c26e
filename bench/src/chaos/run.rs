//! One run of the harness: a farm at work, one fault after the other, everybody well again, and the oracle's judgement.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pcfarm_sql::checks;
use pcfarm_sql::connect::connect;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::Config;

use super::faults::{Fault, Hits, Kind, Nemesis, Remedied, Remedy, Struck, remedy, strike};
use super::oracle::Judgement;
use super::planted::{OUTAGES, Planted};
use super::world::World;

/// What a run does.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub faults: usize,
    /// No more faults after this.
    pub faults_for: Option<Duration>,
    pub kinds: Vec<Kind>,
    pub planted: Option<&'static Planted>,
    /// Longest that a farm may take to be done once everybody is well.
    pub recovery: Duration,
}

impl Plan {
    /// Every kind of fault, of a farm without a planted bug.
    pub fn of(seed: u64) -> Plan {
        let kinds = Kind::ALL.to_vec();
        Plan { seed, faults: 150, faults_for: None, kinds, planted: None, recovery: RECOVERY }
    }
}

/// What it came to.
#[derive(Debug)]
pub struct Outcome {
    pub plan: Plan,
    /// Injected, by kind.
    pub injected: BTreeMap<Kind, usize>,
    /// Not injected, by kind, and why.
    pub skipped: BTreeMap<Kind, (usize, String)>,
    pub judgement: Judgement,
    /// Until the last job had ended, after everybody was well again.
    pub recovered: Duration,
    pub took: Duration,
}

/// Faults that there are at a time.
const AT_ONCE: usize = 3;

const TICK: Duration = Duration::from_millis(20);

/// Between two looks at all that must be true, and for one.
const WATCH_PAUSE: Duration = Duration::from_secs(3);
const WATCH_WAIT: Duration = Duration::from_secs(20);

/// A farm that is well again should be done by then.
pub const RECOVERY: Duration = Duration::from_secs(120);

/// Of the checkouts that workstations have when nothing but the database goes away, how many may be taken from them.
const LOST_SHARE: f64 = 0.01;

/// Clients that are not done take the farm's time to be done, but for this.
const LAST_LOOK: Duration = Duration::from_secs(3);

/// A fault or its remedy may meet a farm that another one has hit.
const PATIENCE: Duration = Duration::from_secs(30);

struct Pending {
    due: Instant,
    fault: Fault,
    remedy: Remedy,
}

/// Runs it in this directory, which keeps journals and logs.
pub async fn run(directory: &Path, plan: Plan) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let mut world = World::start(directory, plan.seed, plan.planted).await.context("starting a farm")?;
    let mut nemesis = Nemesis::new(plan.seed, &plan.kinds);
    let mut outcome = Outcome {
        plan: plan.clone(),
        injected: BTreeMap::new(),
        skipped: BTreeMap::new(),
        judgement: Judgement::default(),
        recovered: Duration::ZERO,
        took: Duration::ZERO,
    };
    let mut pending: Vec<Pending> = Vec::new();
    sleep(Duration::from_secs(2)).await; // some work is under way
    let injecting = Instant::now();
    let only_outages = plan.kinds.iter().all(|kind| OUTAGES.contains(kind));
    let mut held: HashSet<i64> = HashSet::new();
    let mut watched = JoinSet::new();
    watched.spawn(keep_watch(world.config.clone()));
    let mut number = 0;
    // What this machine cannot do is made up for by the others.
    while outcome.injected() < plan.faults && number < plan.faults.saturating_mul(2) {
        number += 1;
        if plan.faults_for.is_some_and(|longest| injecting.elapsed() > longest) {
            break;
        }
        let fault = nemesis.next(|hits| world.count(hits));
        while pending.len() >= AT_ONCE || pending.iter().any(|other| other.fault.target() == fault.target()) {
            tick(&mut world, &mut pending, &mut outcome).await?;
        }
        eprintln!("{:7.2} s {number:4} {} {}", began.elapsed().as_secs_f64(), fault.kind.name(), fault.victim);
        world.supervise(&busy(&pending));
        if only_outages {
            // Of a database that is away already, nobody knows.
            held.extend(world.live().await.unwrap_or_default());
        }
        match patiently(&mut world, &fault).await? {
            Struck::Done(remedy) => {
                *outcome.injected.entry(fault.kind).or_default() += 1;
                pending.push(Pending { due: Instant::now() + fault.length, fault, remedy });
            }
            Struck::Skipped(why) => outcome.skip(fault.kind, &why),
        }
        let next = Instant::now() + fault.pause;
        while Instant::now() < next {
            tick(&mut world, &mut pending, &mut outcome).await?;
        }
    }
    while !pending.is_empty() {
        tick(&mut world, &mut pending, &mut outcome).await?;
    }
    let healed = Instant::now();
    world.supervise(&[]);
    let World { workload, .. } = &mut world;
    let ended = std::mem::replace(workload, super::workload::Workload::none()).end(plan.recovery).await;
    let all_ended = wait_for_jobs(&mut world, healed + plan.recovery.max(healed.elapsed() + LAST_LOOK)).await;
    outcome.recovered = healed.elapsed();
    let lifeless = if all_ended.is_ok() { world.signs_of_life(plan.recovery).await } else { Vec::new() };
    watched.abort_all();
    let seen = watched.join_next().await;
    let stopped = world.stop().await;
    let taken = if only_outages { world.taken().await? } else { 0 };
    outcome.judgement = world.judge().await?;
    world.keep_logs();
    let wrong = &mut outcome.judgement.wrong;
    wrong.extend(all_ended.err().map(|error| format!("{error:#}")));
    if !ended {
        wrong.push(format!("clients are not done {:?} after everybody is well", plan.recovery));
    }
    if taken as f64 > LOST_SHARE * held.len() as f64 {
        let held = held.len();
        wrong.push(format!("the database was away, and {taken} of {held} checkouts were taken from workstations"));
    }
    outcome.judgement.wrong.extend(stopped.into_iter().chain(lifeless));
    if let Some(Ok(seen)) = seen {
        outcome.judgement.wrong.extend(seen);
    }
    if plan.faults_for.is_none() && outcome.injected() < plan.faults {
        outcome.judgement.wrong.push(format!(
            "only {} of {} faults could be injected",
            outcome.injected(),
            plan.faults
        ));
    }
    outcome.took = began.elapsed();
    Ok(outcome)
}

/// Looks again and again, in one snapshot each time, whether everything that must be true at any moment is. Returns what
/// was not, as soon as something was not.
async fn keep_watch(config: Config) -> Vec<String> {
    loop {
        let began = Instant::now();
        // The database may be away.
        if let Ok(Ok(found)) = timeout(WATCH_WAIT, look(&config)).await
            && !found.is_empty()
        {
            return found;
        }
        sleep(WATCH_PAUSE.max(began.elapsed() * 5)).await;
    }
}

async fn look(config: &Config) -> anyhow::Result<Vec<String>> {
    let (client, _connection) = connect(config).await?;
    client.batch_execute("begin isolation level repeatable read read only").await?;
    let mut found = Vec::new();
    for (name, query) in checks::INVARIANTS {
        let text = format!("select to_jsonb(v)::text from ({query}\n) v limit 3");
        for row in client.query(&text, &[]).await.with_context(|| format!("asking {name}"))? {
            found.push(format!("while it ran, {name}: {}", row.get::<_, &str>(0)));
        }
    }
    Ok(found)
}

fn busy(pending: &[Pending]) -> Vec<(Hits, usize)> {
    pending.iter().map(|pending| pending.fault.target()).collect()
}

/// A fault that needs the database waits until that answers.
async fn patiently(world: &mut World, fault: &Fault) -> anyhow::Result<Struck> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match strike(world, fault).await {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(200)).await,
            outcome => return outcome.with_context(|| format!("bringing about {}", fault.kind.name())),
        }
    }
}

/// Makes good what is due, and starts what has ended by itself.
async fn tick(world: &mut World, pending: &mut Vec<Pending>, outcome: &mut Outcome) -> anyhow::Result<()> {
    sleep(TICK).await;
    while let Some(place) = pending.iter().position(|pending| Instant::now() >= pending.due) {
        let Pending { fault, remedy: due, .. } = pending.swap_remove(place);
        let found = remedy(world, due).await.with_context(|| format!("making {} good again", fault.kind.name()))?;
        if let Remedied::NothingHadHappened(why) = found {
            *outcome.injected.entry(fault.kind).or_insert(1) -= 1;
            outcome.skip(fault.kind, why);
        }
    }
    world.supervise(&busy(pending));
    Ok(())
}

async fn wait_for_jobs(world: &mut World, deadline: Instant) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        world.supervise(&[]);
        let open = async {
            let (client, _connection) = world.database().await?;
            anyhow::Ok(
                client.query_one("select count(*) from pcfarm.job where ended_at is null", &[]).await?.get::<_, i64>(0),
            )
        };
        let open = open.await;
        if matches!(open, Ok(0)) {
            return Ok(());
        }
        let why = open.map_or_else(|error| format!("{error:#}"), |open| format!("{open} jobs have not ended"));
        let waited = began.elapsed();
        ensure!(
            Instant::now() < deadline,
            "everybody is well, and after {waited:?} {why}\n{}",
            world.farm.state().await
        );
        sleep(Duration::from_millis(200)).await;
    }
}

impl Outcome {
    fn skip(&mut self, kind: Kind, why: &str) {
        self.skipped.entry(kind).or_insert_with(|| (0, why.to_owned())).0 += 1;
    }

    pub fn injected(&self) -> usize {
        self.injected.values().sum()
    }

    pub fn json(&self) -> Value {
        let names = |found: &[String]| json!(found.iter().take(20).collect::<Vec<_>>());
        let Judgement { lost, doubled, applied_from_revoked, wrong, jobs, problems, verdicts, .. } = &self.judgement;
        let kinds: serde_json::Map<String, Value> =
            self.injected.iter().map(|(kind, count)| (kind.name(), json!(count))).collect();
        let skipped: Vec<Value> = self
            .skipped
            .iter()
            .map(|(kind, (count, why))| json!({"what": kind.name(), "times": count, "why": why}))
            .collect();
        json!({
            "table": "chaos",
            "seed": self.plan.seed,
            "seconds": self.took.as_secs_f64(),
            "recovery_seconds": self.recovered.as_secs_f64(),
            "processed": problems,
            "jobs": jobs,
            "acknowledgements": verdicts,
            "faults": self.injected(),
            "kinds": kinds,
            "skipped": skipped,
            "lost": lost.len(),
            "doubled": doubled.len(),
            "applied_from_revoked": applied_from_revoked.len(),
            "wrong": wrong.len(),
            "found": {
                "lost": names(lost),
                "doubled": names(doubled),
                "applied_from_revoked": names(applied_from_revoked),
                "wrong": names(wrong),
            },
        })
    }

    pub fn text(&self) -> String {
        let Judgement { lost, doubled, applied_from_revoked, wrong, jobs, problems, verdicts, .. } = &self.judgement;
        let mut text = format!(
            "seed {}: {} faults of {} kinds in {:.0} s; {jobs} jobs of {problems} problems, {verdicts} acknowledgements; \
             all done {:.1} s after everybody was well\n",
            self.plan.seed,
            self.injected(),
            self.injected.len(),
            self.took.as_secs_f64(),
            self.recovered.as_secs_f64(),
        );
        for (kind, count) in &self.injected {
            text += &format!("  {:4} {}\n", count, kind.name());
        }
        for (kind, (count, why)) in &self.skipped {
            text += &format!("  skipped {count} times: {}: {why}\n", kind.name());
        }
        for (name, found) in
            [("lost", lost), ("doubled", doubled), ("applied from revoked", applied_from_revoked), ("wrong", wrong)]
        {
            text += &format!("  {name}: {}\n", found.len());
            found.iter().take(20).for_each(|found| text += &format!("    {found}\n"));
        }
        text
    }
}
