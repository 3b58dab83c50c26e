//! Table `enrolment`: what it costs to submit a file of enrolments, through the queue and line by line, as processes: time,
//! memory, and the largest file under one limit of memory. And how long it takes until the farm has enrolled everybody.

use crate::context::{Context, Database};
use crate::farm::{Farm, Server, executable_path};
use crate::plot::{Kind, Plot};
use crate::program::Program;
use crate::report::{Figures, Report};
use anyhow::{Context as _, bail, ensure};
use pcfarm_office::statements;
use pcfarm_proto::ids::JobId;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::time::timeout;
use tokio_postgres::Client;

/// As published.
const SIZES: [u64; 14] = [25, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1500, 2000, 3000];
const QUICK_SIZES: [u64; 3] = [25, 200, 600];
const LARGEST: u64 = 3000;

/// What was published of that size: time and memory of the queued way, in shares of the direct one.
const TIME_RATIO: f64 = 0.15;
const MEMORY_RATIO: f64 = 0.91;

/// What the direct way took under the limit, as published.
const DIRECT_UNDER_LIMIT: u64 = 3189;

/// Of the limit, in KiB.
const LEAST_LIMIT: u64 = 4 << 10;
const MOST_LIMIT: u64 = 256 << 10;
const LIMIT_STEP: u64 = 64;

/// Each person may attend each course: as many lines as that.
const PEOPLE: u64 = 5_000;
const COURSES: u64 = 50;

const LONGEST: Duration = Duration::from_secs(600);

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let sizes = if context.quick { &QUICK_SIZES[..] } else { &SIZES[..] };
    let last = *sizes.last().expect("there are sizes");
    notes(report);
    for run in 0..context.runs {
        let mut figures = Figures::default();
        let office = Office::start(context).await?;
        for &lines in sizes {
            office.compare(lines, &mut figures).await?;
            report.processed(2 * lines);
        }
        if run == 0 {
            office.limits(context, report, &mut figures).await?;
        }
        office.end(context).await?;
        report.run(figures);
    }
    let largest = if context.quick { last } else { LARGEST };
    report.promise_at_most(&format!("queued_of_direct_{largest}_ratio"), TIME_RATIO);
    memory(report, largest);
    let points = |way: &str| -> Vec<(f64, f64)> {
        sizes.iter().filter_map(|n| Some((*n as f64, report.median(&format!("{way}_{n}_ms"))?))).collect()
    };
    let series = ["direct", "queued", "farm"].map(|way| (way.to_owned(), points(way))).into();
    report.plot(Plot {
        name: "time".to_owned(),
        title: "Submitting a file of enrolments, and until the farm has enrolled all".to_owned(),
        y: "ms".to_owned(),
        kind: Kind::Lines { x: "enrolments".to_owned(), logarithmic: false, series },
    });
    Ok(())
}

fn notes(report: &mut Report) {
    report.note(
        "direct: a process judges and enrols line by line, a transaction each, with the rules and statements prepared once; \
         queued: a process stores the file in pieces and creates the job that reads it. Both run from start to exit, and \
         connect once",
    );
    report.note(
        "farm: from the start of the queued process until its job has ended, one agent on the same cores. Where \
         farm_of_direct is above one, who queues is sooner back and later done; the farm keeps an outcome of each line, the \
         direct process of those that it refused",
    );
    report.note("memory: the most that the process ever had resident (VmHWM), its program and libraries included");
    report.note(
        "as published, on another machine, in another language: queued takes 15 % of the time and 91 % of the memory, and \
         imports 3,619 instead of 3,189 under one limit",
    );
}

/// A promise is made of what holds; what does not is said.
fn memory(report: &mut Report, largest: u64) {
    let name = format!("memory_{largest}_ratio");
    match report.median(&name) {
        Some(ratio) if ratio > MEMORY_RATIO => report.note(format!(
            "queued has {:.0} % of direct's memory, not 91 %: of both nearly all is the program and its libraries; a file \
             of {largest} lines is some dozens of KiB",
            ratio * 100.0
        )),
        _ => report.promise_at_most(&name, MEMORY_RATIO),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    Queued,
}

/// What a process said and took.
struct Submitted {
    said: Value,
    took: Duration,
    peak_kib: f64,
}

/// The office's database, and a farm around it.
struct Office {
    database: Database,
    farm: Farm,
    server: Server,
    agent: Program,
    client: Client,
    _connection: pcfarm_sql::connect::ConnectionTask,
}

impl Office {
    async fn start(context: &Context) -> anyhow::Result<Office> {
        let database = context.farm_database().await?;
        let (client, connection) = database.connect().await?;
        for text in [statements::SCHEMA, statements::JOB_TYPES] {
            client.batch_execute(text).await.context("making the office")?;
        }
        client
            .batch_execute(&format!(
                "insert into office.person select 'P' || n, 'Person ' || n, 'p' || n || '@example.org'
                 from generate_series(0, {PEOPLE} - 1) n;
                 insert into office.course (course_id, title, capacity)
                 select 'C' || n, 'Course ' || n, {PEOPLE} from generate_series(0, {COURSES} - 1) n"
            ))
            .await?;
        context.settle(&database).await?;
        let farm = context.farm(&database);
        let server = farm.serving("server", &["--lease", "20", "--heartbeat", "5", "--checkout-seconds", "15"]).await;
        let mut agent = farm
            .program("agent", "office-agent")
            .arguments(["--server", &server.url(), "--hostname", "agent"])
            .arguments(["--state-dir".as_ref(), farm.path("agent.state").as_os_str()]);
        agent.start();
        farm.until(Duration::from_secs(20), "select exists (select from pcfarm.workstation)").await;
        Ok(Office { database, farm, server, agent, client, _connection: connection })
    }

    async fn end(self, context: &Context) -> anyhow::Result<()> {
        let Office { database, farm, server, agent, .. } = self;
        drop((agent, server, farm));
        context.drop_database(database).await
    }

    /// A file of so many lines, all of which can be enrolled.
    fn file(&self, lines: u64) -> anyhow::Result<PathBuf> {
        ensure!(lines <= PEOPLE * COURSES, "{lines} lines are more than there are people and courses");
        let path = self.farm.path(&format!("{lines}.csv"));
        let mut text = String::from("person,course\n");
        for n in 0..lines {
            text += &format!("P{},C{}\n", n % PEOPLE, (n + n / PEOPLE) % COURSES);
        }
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// As if nobody had ever enrolled.
    async fn forget(&self) -> anyhow::Result<()> {
        let text = "truncate office.enrolment, office.line_outcome, office.upload_piece, office.upload;
            update office.course set enrolled = 0";
        self.client.batch_execute(text).await?;
        self.client.batch_execute("vacuum (analyze) office.course").await.context("forgetting who has enrolled")
    }

    async fn enrolled(&self) -> anyhow::Result<u64> {
        let row = self.client.query_one("select count(*) from office.enrolment", &[]).await?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }

    /// Runs the submitting process; under a limit of its address space, if there is one. Nothing: it failed.
    async fn submit(&self, way: Way, lines: u64, limit_kib: Option<u64>) -> anyhow::Result<Option<Submitted>> {
        self.forget().await?;
        let verb = match way {
            Way::Direct => "direct",
            Way::Queued => "queued",
        };
        let program = executable_path("office-submit");
        let mut command = match limit_kib {
            None => Command::new(program),
            Some(limit) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "ulimit -c 0; ulimit -v \"$0\" && exec \"$@\"", &limit.to_string()]).arg(program);
                shell
            }
        };
        command.args(["--database-url", &self.database.url, verb]).arg(self.file(lines)?);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let began = Instant::now();
        let output = timeout(LONGEST, command.output()).await.context("office-submit does not end")??;
        let took = began.elapsed();
        if !output.status.success() {
            ensure!(limit_kib.is_some(), "office-submit: {}", String::from_utf8_lossy(&output.stderr));
            return Ok(None);
        }
        let said: Value = serde_json::from_slice(&output.stdout).context("office-submit prints JSON")?;
        let peak_kib = said["peak_memory_kib"].as_f64().unwrap_or(f64::NAN);
        Ok(Some(Submitted { said, took, peak_kib }))
    }

    /// One size, both ways.
    async fn compare(&self, lines: u64, figures: &mut Figures) -> anyhow::Result<()> {
        let direct = self.submit(Way::Direct, lines, None).await?.context("it does not fail without a limit")?;
        ensure!(self.enrolled().await? == lines, "direct has enrolled {} of {lines}", self.enrolled().await?);
        let began = Instant::now();
        let queued = self.submit(Way::Queued, lines, None).await?.context("it does not fail without a limit")?;
        let prepared = began.elapsed().saturating_sub(queued.took);
        let job = JobId(queued.said["job"].as_i64().context("it says which job")?);
        ensure!(self.farm.ended(job, LONGEST).await == "done", "the job of {lines} lines has failed");
        let farm = began.elapsed().saturating_sub(prepared);
        ensure!(self.enrolled().await? == lines, "the farm has enrolled {} of {lines}", self.enrolled().await?);
        for (way, took) in [("direct", direct.took), ("queued", queued.took), ("farm", farm)] {
            figures.add(format!("{way}_{lines}_ms"), took.as_secs_f64() * 1e3);
        }
        figures.add(format!("direct_{lines}_mib"), direct.peak_kib / 1024.0);
        figures.add(format!("queued_{lines}_mib"), queued.peak_kib / 1024.0);
        for (ratio, over, under) in [
            ("queued_of_direct", format!("queued_{lines}_ms"), format!("direct_{lines}_ms")),
            ("farm_of_direct", format!("farm_{lines}_ms"), format!("direct_{lines}_ms")),
            ("memory", format!("queued_{lines}_mib"), format!("direct_{lines}_mib")),
        ] {
            figures.add_ratio(format!("{ratio}_{lines}_ratio"), &over, &under);
        }
        Ok(())
    }

    /// The largest file of each way under the least limit that lets both take as many as were published.
    async fn limits(&self, context: &Context, report: &mut Report, figures: &mut Figures) -> anyhow::Result<()> {
        let (least, most) = (context.scaled(DIRECT_UNDER_LIMIT, 2_000), context.scaled(20_000, 8_000));
        let mut limit = LEAST_LIMIT;
        for way in [Way::Direct, Way::Queued] {
            limit = limit.max(self.least_limit(way, least, limit).await?);
        }
        figures.add("limit_mib", limit as f64 / 1024.0);
        for (name, way) in [("direct", Way::Direct), ("queued", Way::Queued)] {
            let largest = self.largest(way, limit, least, most).await?;
            figures.add(format!("{name}_largest_lines"), largest as f64);
            if largest == most {
                report.note(format!("under the limit {name} takes {most} lines, and more were not tried"));
            }
        }
        report.note(format!(
            "limit: of the process's address space (ulimit -v), in steps of {LIMIT_STEP} KiB the least under which both ways \
             take {least} lines; how many more each takes was found by bisection, to one in a hundred"
        ));
        Ok(())
    }

    async fn fits(&self, way: Way, lines: u64, limit_kib: u64) -> anyhow::Result<bool> {
        let submitted = self.submit(way, lines, Some(limit_kib)).await?;
        if let Some(job) = submitted.as_ref().and_then(|submitted| submitted.said["job"].as_i64()) {
            // It is the submitting that is looked at.
            let text = "select pcfarm.cancel_job(job_id) from pcfarm.job where job_id = $1 and ended_at is null";
            self.client.query(text, &[&job]).await?;
        }
        Ok(submitted.is_some())
    }

    /// Under which so many lines can be submitted.
    async fn least_limit(&self, way: Way, lines: u64, from: u64) -> anyhow::Result<u64> {
        if self.fits(way, lines, from).await? {
            return Ok(from);
        }
        let (mut too_little, mut enough) = (from, from);
        while !self.fits(way, lines, enough).await? {
            too_little = enough;
            enough *= 2;
            if enough > MOST_LIMIT {
                bail!("{lines} lines do not fit into {MOST_LIMIT} KiB");
            }
        }
        while enough - too_little > LIMIT_STEP {
            let middle = (too_little + enough) / 2 / LIMIT_STEP * LIMIT_STEP;
            if self.fits(way, lines, middle).await? {
                enough = middle;
            } else {
                too_little = middle;
            }
        }
        Ok(enough)
    }

    /// Lines that can be submitted, known to be so many at least; `most` if there is no end of it up to there.
    async fn largest(&self, way: Way, limit: u64, least: u64, most: u64) -> anyhow::Result<u64> {
        let (mut fits, mut too_many) = (least, least);
        while too_many == fits {
            let next = (fits * 2).min(most);
            if self.fits(way, next, limit).await? {
                if next == most {
                    return Ok(most);
                }
                (fits, too_many) = (next, next);
            } else {
                too_many = next;
            }
        }
        while too_many - fits > fits / 100 + 1 {
            let middle = (fits + too_many) / 2;
            if self.fits(way, middle, limit).await? {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        Ok(fits)
    }
}
