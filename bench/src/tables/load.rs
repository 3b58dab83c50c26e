//! Table `load`: every way into the queue, in rows a second, against raw `COPY` of the same rows into the same table; and
//! the memory of client, server and backend at one million and at ten.

use crate::context::{Context, Database};
use crate::farm::{Farm, Server};
use crate::plot::{Kind, Plot};
use crate::program::Program;
use crate::report::{Figures, Report};
use crate::usage;
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// Table, index, log and files of one problem, measured ones and those of the source.
const BYTES_EACH: u64 = 1_200;

/// What a COPY is fed with at a time.
const CHUNK: usize = 256 << 10;

/// Between looks at a process's memory.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// More than this is growth, and not chance.
const GROWTH_MIB: f64 = 32.0;

/// Groups are packed within work_mem, 16 MB here; twice that may be hashed, and hashed twice.
const GROUPED_MIB: f64 = 200.0;

/// For the server to be done with what is to be emptied.
const EMPTY_WAIT: Duration = Duration::from_secs(60);

const LONGEST: Duration = Duration::from_secs(1800);

const PLAIN: &str = "select key, payload from public.source";
/// Some seven problems a group, and never two neighbours in one.
const GROUPED: &str = "select key, payload, group_key from public.source";

const COLUMNS: &str = "pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload)";

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let problems = context.scaled(1_000_000, 100_000);
    let many = context.scaled(10_000_000, 300_000);
    context.need_disk((2 * problems).max(many) * BYTES_EACH, "load")?;
    report.note(format!("{problems} problems a figure, jsonb of about 100 bytes; the table is emptied before each"));
    report.note(
        "copy: COPY FROM STDIN as text, with all columns, into pcfarm.problem with its index, checks and trigger",
    );
    report.note("COPY is measured before the others and after them (copy_after); ratios are to the mean of both");
    report.note(
        "csv_grouped has no bound, and is below half of COPY: a file is read but once, so its rows are written as they come, and \
         then in the order of their groups",
    );
    report.note("rates are of the whole call, commit and ANALYZE included; COPY is not followed by an ANALYZE");
    report.note("grouped: about seven problems a group, scattered over the load, in convoys of 30");
    report.note("memory and its growth (_mib): a single run, with one and with ten million problems");
    for _ in 0..context.runs {
        let bench = Bench::start(context, problems).await?;
        let mut figures = Figures::default();
        bench.rates(&mut figures).await?;
        report.processed(problems * (WAYS.len() + 1) as u64);
        bench.end(context).await?;
        report.run(figures);
    }
    for (way, _) in WAYS.into_iter().filter(|(way, _)| !NOT_PROMISED.contains(way)) {
        report.promise_at_least(&format!("{way}_of_copy_ratio"), 0.5);
    }
    let peaks = memory(context, report, problems, many).await?;
    report.run(peaks);
    for name in NOT_GROWING {
        report.promise_at_most(&format!("{name}_growth_mib"), GROWTH_MIB);
    }
    report.promise_at_most("sql_grouped_backend_many_mib", GROUPED_MIB);
    let bars = WAYS.into_iter().filter_map(|(way, _)| {
        let rate = report.median(&format!("{way}_rows_per_second"))?;
        Some((way.to_owned(), rate))
    });
    let bars = bars.collect();
    report.plot(Plot {
        name: "rate".to_owned(),
        title: "Problems loaded a second, durable, on one machine".to_owned(),
        y: "problems a second".to_owned(),
        kind: Kind::Bars(bars),
    });
    Ok(())
}

/// How problems come in.
#[derive(Clone, Copy)]
enum Way {
    Copy,
    Insert,
    Sql { query: &'static str, convoy: i32 },
    Cli(&'static [&'static str]),
    CliQuery,
}

const WAYS: [(&str, Way); 9] = [
    ("copy", Way::Copy),
    ("insert", Way::Insert),
    ("sql", Way::Sql { query: PLAIN, convoy: 100 }),
    ("sql_convoy_30", Way::Sql { query: PLAIN, convoy: 30 }),
    ("sql_grouped", Way::Sql { query: GROUPED, convoy: 30 }),
    ("csv", Way::Cli(&["source.csv"])),
    ("ndjson", Way::Cli(&["source.ndjson"])),
    ("csv_grouped", Way::Cli(&["grouped.csv", "--convoy", "30"])),
    ("query", Way::CliQuery),
];

/// COPY once more, after the others.
const COPY_AFTER: &str = "copy_after";

/// What the others are compared with; and a file with groups, which is written twice: as it comes, then in its order.
const NOT_PROMISED: [&str; 3] = ["copy", "insert", "csv_grouped"];

/// Processes that hold no more at ten million problems than at one.
const NOT_GROWING: [&str; 7] =
    ["csv_client", "csv_server", "csv_backend", "ndjson_client", "ndjson_server", "ndjson_backend", "sql_backend"];

/// A database with the rows that are to be loaded, files of the same rows, and a server.
struct Bench {
    database: Database,
    farm: Farm,
    server: Server,
    client: Client,
    _connection: pcfarm_sql::connect::ConnectionTask,
    problems: u64,
}

impl Bench {
    async fn start(context: &Context, problems: u64) -> anyhow::Result<Bench> {
        let bench = Bench::empty(context, problems).await?;
        bench.client.batch_execute(&source(problems)).await.context("making the rows that are to be loaded")?;
        let order = "order by n";
        for (file, text) in [
            ("source.txt", format!("select 0, 1, n, (n - 1) / 100, key, payload from public.source {order}")),
            (
                "source.ndjson",
                format!("select json_build_object('key', key, 'payload', payload) from public.source {order}"),
            ),
        ] {
            bench.write(file, &format!("copy ({text}) to stdout")).await?;
        }
        let columns = "key, payload ->> 'n' as n, payload ->> 'text' as text";
        for (file, text) in [
            ("source.csv", format!("select {columns} from public.source {order}")),
            ("grouped.csv", format!("select {columns}, group_key from public.source {order}")),
        ] {
            bench.write(file, &format!("copy ({text}) to stdout (format csv, header)")).await?;
        }
        context.settle(&bench.database).await?;
        // The log's files are made once and then used again: nobody shall pay for making them.
        bench.copy().await?;
        Ok(bench)
    }

    async fn empty(context: &Context, problems: u64) -> anyhow::Result<Bench> {
        let database = context.farm_database().await?;
        let (client, connection) = database.connect().await?;
        client.batch_execute("set statement_timeout = 0; set search_path = public").await?;
        client.batch_execute(crate::pointer::PAYLOAD).await?;
        client.execute("select pcfarm.create_job_type('noop', 'echo')", &[]).await?;
        let farm = context.farm(&database);
        let server = farm.serving("server", &["--lease", "20", "--heartbeat", "5", "--checkout-seconds", "15"]).await;
        Ok(Bench { database, farm, server, client, _connection: connection, problems })
    }

    async fn end(self, context: &Context) -> anyhow::Result<()> {
        let Bench { database, farm, server, .. } = self;
        drop((server, farm));
        context.drop_database(database).await
    }

    /// What a COPY writes, into a file of that name.
    async fn write(&self, name: &str, copy: &str) -> anyhow::Result<()> {
        let path = self.farm.path(name);
        let mut file = BufWriter::new(File::create(&path).await.with_context(|| format!("making {}", path.display()))?);
        let mut rows = pin!(self.client.copy_out(copy).await.context("writing the rows to a file")?);
        while let Some(row) = rows.next().await {
            file.write_all(&row?).await?;
        }
        file.flush().await.with_context(|| format!("writing {}", path.display()))
    }

    async fn rates(&self, figures: &mut Figures) -> anyhow::Result<()> {
        for (name, way) in WAYS.into_iter().chain([(COPY_AFTER, Way::Copy)]) {
            self.empty_queue().await?;
            let took = self.load(way).await.with_context(|| format!("measuring {name}"))?;
            let count: i64 = self.client.query_one("select count(*) from pcfarm.problem", &[]).await?.get(0);
            ensure!(count as u64 == self.problems, "{name} loaded {count} of {} problems", self.problems);
            figures.add(format!("{name}_rows_per_second"), self.problems as f64 / took.as_secs_f64());
        }
        let copies = ["copy", COPY_AFTER].map(|name| figures.get(&format!("{name}_rows_per_second")));
        let copy = copies.into_iter().flatten().sum::<f64>() / 2.0;
        for (name, _) in WAYS.into_iter().filter(|(name, _)| *name != "copy") {
            if let Some(rate) = figures.get(&format!("{name}_rows_per_second")) {
                figures.add(format!("{name}_of_copy_ratio"), rate / copy);
            }
        }
        figures.add_ratio("sql_of_insert_ratio", "sql_rows_per_second", "insert_rows_per_second");
        Ok(())
    }

    /// So that each way finds the same: an empty table, and nothing left to be written for the one before.
    async fn empty_queue(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        // The server looks at these tables meanwhile, in an order of its own.
        while let Err(error) = self.client.batch_execute("truncate pcfarm.problem, pcfarm.lane, pcfarm.job").await {
            ensure!(
                error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) && began.elapsed() < EMPTY_WAIT,
                "emptying the queue: {error}"
            );
        }
        self.client.batch_execute("checkpoint").await?;
        Ok(())
    }

    async fn load(&self, way: Way) -> anyhow::Result<Duration> {
        match way {
            Way::Copy => self.copy().await,
            Way::Insert => {
                let text = format!(
                    "insert into {COLUMNS} select 0, 1, row_number() over (), (row_number() over () - 1) / 100, key, payload
                     from ({PLAIN}) q"
                );
                let began = Instant::now();
                self.client.batch_execute(&text).await?;
                Ok(began.elapsed())
            }
            Way::Sql { query, convoy } => self.sql(query, convoy).await,
            Way::Cli([file, flags @ ..]) => {
                let mut program = self.cli(&self.farm.path(file), flags);
                let began = Instant::now();
                program.start();
                ended(&mut program).await?;
                Ok(began.elapsed())
            }
            Way::Cli([]) => Ok(Duration::ZERO),
            Way::CliQuery => {
                let mut program = self
                    .farm
                    .program("cli", "pcfarm")
                    .arguments(["job", "load", "--name", "measured", "--type", "noop", "--no-open", "--query", PLAIN])
                    .arguments(["--database-url", &self.database.url]);
                let began = Instant::now();
                program.start();
                ended(&mut program).await?;
                Ok(began.elapsed())
            }
        }
    }

    /// What client, server and the largest backend have for themselves while a file is loaded, at most.
    async fn file_peaks(&self, file: &str) -> anyhow::Result<[u64; 3]> {
        let mut cli = self.cli(&self.farm.path(file), &[]);
        let mut peaks = [0; 3];
        cli.start();
        let programs = [cli.pid(), self.server.program.pid()];
        while cli.runs() {
            for (peak, pid) in peaks.iter_mut().zip(programs) {
                *peak = (*peak).max(pid.and_then(usage::private_bytes).unwrap_or(0));
            }
            peaks[2] = peaks[2].max(largest_backend(&self.client).await?);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        ended(&mut cli).await?;
        Ok(peaks)
    }

    async fn copy(&self) -> anyhow::Result<Duration> {
        let mut file = File::open(self.farm.path("source.txt")).await.context("opening the rows for COPY")?;
        let began = Instant::now();
        let mut sink = pin!(self.client.copy_in(&format!("copy {COLUMNS} from stdin")).await?);
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            if file.read_buf(&mut chunk).await? == 0 {
                break;
            }
            sink.send(Bytes::from(chunk)).await?;
        }
        sink.finish().await?;
        Ok(began.elapsed())
    }

    async fn sql(&self, query: &str, convoy: i32) -> anyhow::Result<Duration> {
        let job: i64 = self.client.query_one("select pcfarm.create_job('measured', 'noop')", &[]).await?.get(0);
        let began = Instant::now();
        self.client.execute("select pcfarm.load($1, $2, $3)", &[&job, &query, &convoy]).await?;
        Ok(began.elapsed())
    }

    fn cli(&self, file: &Path, flags: &[&str]) -> Program {
        let url = self.server.url();
        self.farm
            .program("cli", "pcfarm")
            .arguments(["--server", &url, "job", "load", "--name", "measured", "--type", "noop", "--no-open"])
            .arguments(flags)
            .arguments([PathBuf::from(file)])
    }
}

async fn ended(program: &mut Program) -> anyhow::Result<()> {
    let status = program.ended(LONGEST).await;
    ensure!(status.success(), "{}: {status}: {}", program.name, program.log());
    Ok(())
}

/// The rows as a table, in their order.
fn source(problems: u64) -> String {
    let groups = problems / 7 + 1;
    // A prime that is not in the number of groups scatters them.
    format!(
        "create table public.source as
         select n, n::text as key, public.pcfarm_payload(n) as payload, 'g' || n * 7919 % {groups} as group_key
         from generate_series(1::bigint, {problems}) n"
    )
}

/// The same rows, made while they are read.
fn made(problems: u64, grouped: bool) -> String {
    let groups = problems / 7 + 1;
    let group = if grouped { format!(", 'g' || n * 7919 % {groups} as group_key") } else { String::new() };
    format!(
        "select n::text as key, public.pcfarm_payload(n) as payload{group} from generate_series(1::bigint, {problems}) n"
    )
}

/// Peaks of few and of many, and how much they differ.
async fn memory(context: &Context, report: &mut Report, few: u64, many: u64) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    for (label, problems) in [("few", few), ("many", many)] {
        for (name, peak) in peaks(context, problems).await? {
            figures.add(format!("{name}_{label}_mib"), peak as f64 / f64::from(1 << 20));
        }
        report.processed(4 * problems);
    }
    for name in NOT_GROWING.into_iter().chain(["sql_grouped_backend"]) {
        if let (Some(few), Some(many)) =
            (figures.get(&format!("{name}_few_mib")), figures.get(&format!("{name}_many_mib")))
        {
            figures.add(format!("{name}_growth_mib"), many - few);
        }
    }
    report.note(format!(
        "memory: highest seen of what a process has for itself, at {few} (few) and at {many} problems (many)"
    ));
    Ok(figures)
}

async fn peaks(context: &Context, problems: u64) -> anyhow::Result<Vec<(&'static str, u64)>> {
    if usage::private_bytes(std::process::id()).is_none() {
        return Ok(Vec::new());
    }
    let bench = Bench::empty(context, problems).await?;
    let rows = made(problems, false);
    let columns = "key, payload ->> 'n' as n, payload ->> 'text' as text";
    let mut found = Vec::new();
    for (names, file, copy) in [
        (
            ["csv_client", "csv_server", "csv_backend"],
            "many.csv",
            format!("copy (select {columns} from ({rows}) q) to stdout (format csv, header)"),
        ),
        (
            ["ndjson_client", "ndjson_server", "ndjson_backend"],
            "many.ndjson",
            format!("copy (select json_build_object('key', key, 'payload', payload) from ({rows}) q) to stdout"),
        ),
    ] {
        bench.empty_queue().await?;
        bench.write(file, &copy).await?;
        found.extend(names.into_iter().zip(bench.file_peaks(file).await?));
        std::fs::remove_file(bench.farm.path(file)).context("removing what was loaded")?;
    }
    for (name, grouped) in [("sql_backend", false), ("sql_grouped_backend", true)] {
        bench.empty_queue().await?;
        // A backend of its own, that has done nothing else.
        let (loader, _connection) = bench.database.connect().await?;
        loader.batch_execute("set statement_timeout = 0").await?;
        let job: i64 = loader.query_one("select pcfarm.create_job('measured', 'noop')", &[]).await?.get(0);
        let query = made(problems, grouped);
        let mut peak = 0;
        let convoy = 30_i32;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&job, &query, &convoy];
        let mut loading = pin!(loader.execute("select pcfarm.load($1, $2, $3)", &parameters));
        loop {
            peak = peak.max(largest_backend(&bench.client).await?);
            match tokio::time::timeout(LOOK_EVERY, &mut loading).await {
                Ok(loaded) => break loaded.map(drop)?,
                Err(_) => continue,
            }
        }
        found.push((name, peak));
    }
    bench.end(context).await?;
    Ok(found)
}

/// What the largest of the other backends has for itself, buffers that it shares not counted.
async fn largest_backend(client: &Client) -> anyhow::Result<u64> {
    let text = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    let rows = client.query(text, &[]).await?;
    let pids = rows.iter().filter_map(|row| u32::try_from(row.get::<_, i32>(0)).ok());
    Ok(pids.filter_map(usage::private_bytes).max().unwrap_or(0))
}
