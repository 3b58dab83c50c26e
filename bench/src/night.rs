//! One measured night: a job of no-op problems, a server, an agent, and the time from opening the job until its last
//! checkout closed, as the database has it.

use crate::context::{Context, Database};
use crate::farm::{Farm, Server};
use crate::pointer::PAYLOAD;
use crate::program::Program;
use crate::usage::{self, Usage};
use crate::{report::Figures, truth};
use anyhow::{Context as _, ensure};
use pcfarm_proto::ids::JobId;
use std::time::{Duration, SystemTime};

/// Longest that any measured job may take.
const LONGEST: Duration = Duration::from_secs(1800);

/// A farm's defaults, which the harness has scaled down.
const RHYTHM: [&str; 8] = ["--lease", "20", "--heartbeat", "5", "--checkout-seconds", "15", "--pool-size", "16"];

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub seconds: f64,
    pub problems: u64,
    pub server: Usage,
    pub agent: Usage,
    pub postgresql: Duration,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.problems as f64 / self.seconds
    }

    /// Of both together.
    #[must_use]
    pub fn and(self, other: Measured) -> Measured {
        let both = |a: Usage, b: Usage| Usage { cpu: a.cpu + b.cpu, memory_bytes: a.memory_bytes.max(b.memory_bytes) };
        Measured {
            seconds: self.seconds + other.seconds,
            problems: self.problems + other.problems,
            server: both(self.server, other.server),
            agent: both(self.agent, other.agent),
            postgresql: self.postgresql + other.postgresql,
        }
    }

    /// Adds the rate, and where the cores' time went.
    pub fn add_to(&self, figures: &mut Figures, name: &str) {
        figures.add(format!("{name}_per_second"), self.per_second());
        for (who, cpu) in [("postgresql", self.postgresql), ("server", self.server.cpu), ("agent", self.agent.cpu)] {
            figures.add(format!("{name}_{who}_us_each"), cpu.as_secs_f64() * 1e6 / self.problems as f64);
        }
    }
}

/// A database with a job type `noop`, programs around it.
pub struct Site {
    pub database: Database,
    pub farm: Farm,
    pub server: Server,
    pub agent: Program,
    postmaster: u32,
}

impl Site {
    /// With the default rhythm of a farm, and these flags for the server.
    pub async fn start(context: &Context, flags: &[&str]) -> anyhow::Result<Site> {
        Site::start_with(context, flags, |agent, _| agent).await
    }

    /// The same, with an agent of one's own making.
    pub async fn start_with(
        context: &Context,
        flags: &[&str],
        agent: impl FnOnce(Program, &Farm) -> Program,
    ) -> anyhow::Result<Site> {
        let database = context.farm_database().await?;
        let (client, _connection) = database.connect().await?;
        client.batch_execute(PAYLOAD).await?;
        client.execute("select pcfarm.create_job_type('noop', 'echo')", &[]).await?;
        let farm = context.farm(&database);
        let server = farm.serving("server", &[&RHYTHM, flags].concat()).await;
        let plain = farm
            .program("agent", "pcfarm-worker")
            .arguments(["--server", &server.url(), "--hostname", "agent"])
            .arguments(["--state-dir".as_ref(), farm.path("agent.state").as_os_str()]);
        let mut agent = agent(plain, &farm);
        agent.start();
        farm.until(Duration::from_secs(20), "select exists (select from pcfarm.workstation)").await;
        Ok(Site { database, farm, server, agent, postmaster: context.postmaster().await? })
    }

    /// Another server in the place of this one, with other flags; the agent finds it.
    pub async fn restart_server(&mut self, flags: &[&str]) {
        self.server.program.kill();
        let listen = format!("127.0.0.1:{}", self.server.port);
        let mut server = self.farm.server("server", &[&RHYTHM, flags].concat());
        server.program = server.program.replacing_argument("--listen", &listen);
        server.port = self.server.port;
        server.start().await;
        self.server = server;
        let connected = "select exists (select from pcfarm.workstation where silent_since is null and state <> 'dead')";
        self.farm.until(Duration::from_secs(20), connected).await;
    }

    /// Loads a job of no-op problems, not opened yet.
    pub async fn load(&self, problems: u64, convoy: u32) -> anyhow::Result<JobId> {
        let (client, _connection) = self.database.connect().await?;
        client.batch_execute("set statement_timeout = 0").await?;
        let job: JobId = client.query_one("select pcfarm.create_job('no-ops', 'noop')", &[]).await?.get(0);
        let query = format!(
            "select n::text as key, public.pcfarm_payload(n) as payload from generate_series(1, {problems}::bigint) n"
        );
        client.execute("select pcfarm.load($1, $2, $3)", &[&job, &query, &(convoy as i32)]).await.context("loading")?;
        Ok(job)
    }

    /// Loads so many jobs of no-op problems, each of its user in turn, not opened yet.
    pub async fn load_many(&self, jobs: u64, users: u64, problems_each: u64) -> anyhow::Result<()> {
        let (client, _connection) = self.database.connect().await?;
        let text = format!(
            "set statement_timeout = 0;
             select pcfarm.set_user(array_agg('user' || u), '{{}}') from generate_series(1, {users}) u;
             do $$
             declare
                 made bigint;
             begin
                 for n in 1..{jobs} loop
                     made := pcfarm.create_job('no-ops ' || n, 'noop');
                     perform pcfarm.load(made, 'select n::text as key, public.pcfarm_payload(n) as payload
                         from generate_series(1, {problems_each}::bigint) n', 1);
                     update pcfarm.job set owner = 'user' || (1 + n % {users}) where job_id = made;
                 end loop;
             end $$"
        );
        client.batch_execute(&text).await.context("loading many jobs")
    }

    /// Opens all jobs and waits until they are done. Seconds from the first hand-out to the last result, without what it takes to
    /// open many jobs in one statement, and how many problems they had.
    pub async fn crunch_all(&self) -> anyhow::Result<(f64, u64)> {
        let (client, _connection) = self.database.connect().await?;
        client.batch_execute("set statement_timeout = 0").await?;
        let began: SystemTime = client.query_one("select clock_timestamp()", &[]).await?.get(0);
        client.query("select pcfarm.open_job(job_id) from pcfarm.job where state = 'loading'", &[]).await?;
        self.farm.until(LONGEST, "select not exists (select from pcfarm.job where ended_at is null)").await;
        let text =
            "select extract(epoch from max(c.ended_at) - min(c.checked_out_at))::float8, sum(c.delivered)::bigint
            from pcfarm.checkout c where c.checked_out_at > $1";
        let row = client.query_one(text, &[&began]).await?;
        Ok((row.get(0), row.get::<_, i64>(1).unsigned_abs()))
    }

    fn usage(&self) -> (Usage, Usage, Duration) {
        let of = |pid: Option<u32>| pid.map(usage::of).unwrap_or_default();
        (of(self.server.program.pid()), of(self.agent.pid()), usage::of_family(self.postmaster).cpu)
    }

    /// Opens the job and waits until it is done.
    pub async fn crunch(&self, job: JobId) -> anyhow::Result<Measured> {
        self.measure(job, "select pcfarm.open_job($1)", None).await
    }

    /// Lets so many more problems of a job be crunched, about, and holds it then. It is open or was held so before.
    pub async fn crunch_more(&self, job: JobId, problems: u64) -> anyhow::Result<Measured> {
        let stored = self.farm.progress(job).await.0;
        let state = self.farm.query("select state from pcfarm.job where job_id = $1", &[&job]).await;
        let start = match state[0].get::<_, &str>(0) {
            "held" => "select pcfarm.release_job($1)",
            _ => "select pcfarm.open_job($1)",
        };
        self.measure(job, start, Some(stored + problems as i64)).await
    }

    async fn measure(&self, job: JobId, start: &str, until: Option<i64>) -> anyhow::Result<Measured> {
        let (client, _connection) = self.database.connect().await?;
        let before = self.usage();
        let began: SystemTime = client.query_one("select clock_timestamp()", &[]).await?.get(0);
        client.query(start, &[&job]).await?;
        match until {
            None => {
                let state = self.farm.ended(job, LONGEST).await;
                ensure!(state == "done", "the measured job ended as {state}");
            }
            Some(problems) => {
                self.farm.finished(job, problems, LONGEST).await;
                client.query("select pcfarm.hold_job($1)", &[&job]).await?;
                let live = "select not exists (select from pcfarm.checkout where job_id = $1 and ended_at is null)";
                let live = live.replace("$1", &job.to_string());
                self.farm.until(Duration::from_secs(60), &live).await;
            }
        }
        let after = self.usage();
        let text = "select extract(epoch from max(c.ended_at) - $2)::float8, sum(c.delivered)::bigint
            from pcfarm.checkout c where c.job_id = $1 and c.ended_at > $2";
        let row = client.query_one(text, &[&job, &began]).await?;
        let problems: i64 = row.get(1);
        Ok(Measured {
            seconds: row.get(0),
            problems: problems as u64,
            server: Usage { cpu: after.0.cpu.saturating_sub(before.0.cpu), ..after.0 },
            agent: Usage { cpu: after.1.cpu.saturating_sub(before.1.cpu), ..after.1 },
            postgresql: after.2.saturating_sub(before.2),
        })
    }

    /// By the database's clock.
    pub async fn now(&self) -> anyhow::Result<SystemTime> {
        let (client, _connection) = self.database.connect().await?;
        Ok(client.query_one("select clock_timestamp()", &[]).await?.get(0))
    }

    /// Problems a second of each tenth of a job's closed checkouts, in the order in which they ended.
    pub async fn tenths(&self, job: JobId) -> anyhow::Result<Vec<f64>> {
        let (client, _connection) = self.database.connect().await?;
        let opened = client.query_one("select opened_at from pcfarm.job where job_id = $1", &[&job]).await?.get(0);
        self.tenths_since(job, opened).await
    }

    /// The same of what was handed out since a moment.
    pub async fn tenths_since(&self, job: JobId, since: SystemTime) -> anyhow::Result<Vec<f64>> {
        let (client, _connection) = self.database.connect().await?;
        let text = "
            with ended as (
                select c.ended_at, c.problems, sum(c.problems) over (order by c.ended_at, c.checkout_id) as so_far,
                    sum(c.problems) over () as total
                from pcfarm.checkout c where c.job_id = $1 and c.ended_at is not null and c.checked_out_at >= $2),
            tenth as (
                select least(9, (e.so_far - e.problems) * 10 / e.total) as n, sum(e.problems) as problems,
                    max(e.ended_at) as until
                from ended e group by 1)
            select (t.problems / greatest(1e-6, extract(epoch from t.until - coalesce(
                lag(t.until) over (order by t.n), $2))))::float8
            from tenth t order by t.n";
        Ok(client.query(text, &[&job, &since]).await?.iter().map(|row| row.get(0)).collect())
    }

    /// Every invariant, as queries that return no rows; and that so many results are there.
    pub async fn check(&self, job: JobId, problems: u64) -> anyhow::Result<()> {
        let (client, _connection) = self.database.connect().await?;
        client.batch_execute("set statement_timeout = 0").await?;
        let stored: i64 = client
            .query_one("select count(*) from pcfarm.result where job_id = $1 and not failed", &[&job])
            .await?
            .get(0);
        ensure!(stored as u64 == problems, "{stored} results for {problems} problems");
        self.check_invariants().await
    }

    /// What must hold of whatever has been measured, ended or not, is looked for as queries that must return no rows.
    pub async fn check_invariants(&self) -> anyhow::Result<()> {
        let (client, _connection) = self.database.connect().await?;
        client.batch_execute("set statement_timeout = 0; analyze").await?;
        let found = truth::violations(&client).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        ensure!(found.is_empty(), "invariants are broken: {}", found.join("; "));
        Ok(())
    }

    /// Ends the programs and drops the database.
    pub async fn end(self, context: &Context) -> anyhow::Result<()> {
        let Site { database, farm, server, agent, .. } = self;
        drop((agent, server, farm));
        context.drop_database(database).await
    }
}
