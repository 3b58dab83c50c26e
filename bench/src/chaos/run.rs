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
use super::workload::Workload;
use super::world::World;

/// What a run does.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub faults: usize,
    /// No new faults after this, and none at all soon after.
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

/// Where faults have a time, the last are made good by then.
const LAST_FAULT: Duration = Duration::from_secs(5);

/// A farm that is well again should be done by then.
pub const RECOVERY: Duration = Duration::from_secs(120);

/// Of the checkouts that workstations have when nothing but the database goes away, how many may be taken from them.
const LOST_SHARE: f64 = 0.01;

/// What programs may take to end in good order; where something is wrong already, they are not waited for.
const STOP_WAIT: Duration = Duration::from_secs(20);
const NO_STOP_WAIT: Duration = Duration::from_secs(2);

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
    let world = World::start(directory, plan.seed, plan.planted).await.context("starting a farm")?;
    sleep(Duration::from_secs(2)).await; // some work is under way
    let mut watch = JoinSet::new();
    watch.spawn(keep_watch(world.config.clone()));
    let outcome = Outcome::of(plan);
    let mut run = Run { world, outcome, pending: Vec::new(), held: HashSet::new(), watch, seen: Vec::new(), began };
    run.inject().await?;
    run.judge().await?;
    run.outcome.took = began.elapsed();
    Ok(run.outcome)
}

struct Run {
    world: World,
    outcome: Outcome,
    /// Faults that there are.
    pending: Vec<Pending>,
    /// Checkouts that workstations had at an outage.
    held: HashSet<i64>,
    /// Whoever looks at what must be true at any moment.
    watch: JoinSet<Vec<String>>,
    /// What they saw.
    seen: Vec<String>,
    began: Instant,
}

impl Run {
    /// One fault after the other, until there have been enough and everybody is well.
    async fn inject(&mut self) -> anyhow::Result<()> {
        let plan = self.outcome.plan.clone();
        let mut nemesis = Nemesis::new(plan.seed, &plan.kinds);
        let injecting = Instant::now();
        let is_over = || plan.faults_for.is_some_and(|longest| injecting.elapsed() > longest);
        let last_due = plan.faults_for.map(|longest| injecting + longest + LAST_FAULT);
        let mut number = 0;
        // What this machine cannot do is made up for by the others.
        while self.outcome.injected() < plan.faults && number < plan.faults.saturating_mul(2) && !is_over() {
            number += 1;
            let fault = nemesis.next(|hits| self.world.count(hits));
            while self.pending.len() >= AT_ONCE
                || self.pending.iter().any(|other| other.fault.target() == fault.target())
            {
                self.tick().await?;
            }
            say(self.began, &format!("{number:4} {} {}", fault.kind.name(), fault.victim));
            self.supervise();
            if self.only_outages() {
                // Of a database that is away already, nobody knows.
                self.held.extend(self.world.live().await.unwrap_or_default());
            }
            match patiently(&mut self.world, &fault).await? {
                Struck::Done(remedy) => {
                    *self.outcome.injected.entry(fault.kind).or_default() += 1;
                    let due = Instant::now() + fault.length;
                    let due = last_due.map_or(due, |last| due.min(last));
                    self.pending.push(Pending { due, fault, remedy });
                }
                Struck::Skipped(why) => self.outcome.skip(fault.kind, &why),
            }
            let next = Instant::now() + fault.pause;
            while Instant::now() < next {
                self.tick().await?;
            }
            if plan.planted.is_some() && !self.seen.is_empty() {
                break;
            }
        }
        while !self.pending.is_empty() {
            self.tick().await?;
        }
        Ok(())
    }

    /// Waits for everybody to be done, and holds what there is against what must be.
    async fn judge(&mut self) -> anyhow::Result<()> {
        let healed = Instant::now();
        say(self.began, "everybody is well");
        let Plan { recovery, faults, faults_for, .. } = self.outcome.plan;
        let only_outages = self.only_outages();
        self.supervise();
        let Run { world, outcome, held, watch, seen, began, .. } = self;
        let ended = std::mem::replace(&mut world.workload, Workload::none()).end(recovery).await;
        let all_ended = wait_for_jobs(world, healed + recovery.max(healed.elapsed() + LAST_LOOK)).await;
        outcome.recovered = healed.elapsed();
        let lifeless = if all_ended.is_ok() { world.signs_of_life(recovery).await } else { Vec::new() };
        say(*began, "all that was there to be done is, or the time for it is over");
        watch.abort_all();
        while let Some(last) = watch.join_next().await {
            seen.extend(last.unwrap_or_default());
        }
        let stopped = world.stop(if all_ended.is_ok() { STOP_WAIT } else { NO_STOP_WAIT }).await;
        let taken = if only_outages { world.taken().await? } else { 0 };
        say(*began, "everybody has stopped");
        outcome.judgement = world.judge().await?;
        world.keep_logs();
        let injected = outcome.injected();
        let wrong = &mut outcome.judgement.wrong;
        wrong.extend(all_ended.err().map(|error| format!("{error:#}")));
        if !ended {
            wrong.push(format!("clients are not done {recovery:?} after everybody is well"));
        }
        if taken as f64 > LOST_SHARE * held.len() as f64 {
            let held = held.len();
            wrong.push(format!("the database was away, and {taken} of {held} checkouts were taken from workstations"));
        }
        wrong.extend(stopped.into_iter().chain(lifeless));
        wrong.append(seen);
        if faults_for.is_none() && injected < faults {
            wrong.push(format!("only {injected} of {faults} faults could be injected"));
        }
        Ok(())
    }

    fn only_outages(&self) -> bool {
        self.outcome.plan.kinds.iter().all(|kind| OUTAGES.contains(kind))
    }

    /// Starts what has ended by itself, but for what a fault has hit.
    fn supervise(&mut self) {
        let busy: Vec<(Hits, usize)> = self.pending.iter().map(|pending| pending.fault.target()).collect();
        self.world.supervise(&busy);
    }

    /// Makes good what is due.
    async fn tick(&mut self) -> anyhow::Result<()> {
        sleep(TICK).await;
        while let Some(place) = self.pending.iter().position(|pending| Instant::now() >= pending.due) {
            let Pending { fault, remedy: due, .. } = self.pending.swap_remove(place);
            let name = fault.kind.name();
            let found = remedy(&mut self.world, due).await.with_context(|| format!("making {name} good again"))?;
            if let Remedied::NothingHadHappened(why) = found {
                *self.outcome.injected.entry(fault.kind).or_insert(1) -= 1;
                self.outcome.skip(fault.kind, why);
            }
        }
        if let Some(seen) = self.watch.try_join_next() {
            self.seen.extend(seen.unwrap_or_default());
        }
        self.supervise();
        Ok(())
    }
}

fn say(began: Instant, what: &str) {
    eprintln!("{:7.2} s {what}", began.elapsed().as_secs_f64());
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

/// The workload changes no resource, so that what is in use is never more than there is.
const TOKENS: (&str, &str) = (
    "tokens_in_use",
    "select r.name, pcfarm.tokens_in_use(r.name) from pcfarm.resource r where pcfarm.tokens_in_use(r.name) > r.tokens",
);

async fn look(config: &Config) -> anyhow::Result<Vec<String>> {
    let (client, _connection) = connect(config).await?;
    client.batch_execute("begin isolation level repeatable read read only").await?;
    let mut found = Vec::new();
    for (name, query) in checks::INVARIANTS.iter().chain(&[TOKENS]) {
        let text = format!("select to_jsonb(v)::text from ({query}\n) v limit 3");
        for row in client.query(&text, &[]).await.with_context(|| format!("asking {name}"))? {
            found.push(format!("while it ran, {name}: {}", row.get::<_, &str>(0)));
        }
    }
    Ok(found)
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

async fn wait_for_jobs(world: &mut World, deadline: Instant) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        world.supervise(&[]);
        let open = async {
            let (client, _connection) = world.database().await?;
            let release =
                "select pcfarm.release_job(j.job_id) from pcfarm.job j where j.job_id = any ($1) and j.state = 'held'";
            client.query(release, &[&world.journal.all_that_may_be_held()]).await?;
            let open = "select count(*) from pcfarm.job where ended_at is null";
            anyhow::Ok(client.query_one(open, &[]).await?.get::<_, i64>(0))
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
    fn of(plan: Plan) -> Outcome {
        let (injected, skipped) = (BTreeMap::new(), BTreeMap::new());
        let (recovered, took) = (Duration::ZERO, Duration::ZERO);
        Outcome { plan, injected, skipped, judgement: Judgement::default(), recovered, took }
    }

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
