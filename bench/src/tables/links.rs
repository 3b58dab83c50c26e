//! Table `links`: how much of a link's rate an agent's results use, on links that are slow, far and lossy.
//!
//! An agent in a network namespace has large and small results; `tc tbf` holds its link to a rate, a relay delays, nftables loses
//! packets. A rate is what PostgreSQL has stored in a time, so frames, headers and retransmissions count against it.

use crate::context::Context;
use crate::farm::{Farm, Server};
use crate::links::namespace::Namespace;
use crate::links::relay::Relay;
use crate::links::{Link, Shape};
use crate::program::Program;
use crate::report::{Figures, Report};
use anyhow::{Context as _, ensure};
use serde_json::json;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Least share of the link's rate, or of a plain connection's rate where lost packets make that less.
const LEAST_SHARE: f64 = 0.8;

/// Least share of the loopback's rate at 1 Gbit/s.
const LEAST_OF_LOOPBACK: f64 = 0.95;

const KBITS: [u64; 6] = [64, 256, 1_000, 10_000, 30_000, 100_000];
const QUICK_KBITS: [u64; 2] = [256, 10_000];
const FAR: Duration = Duration::from_millis(300);
const LOSS_PERCENT: u32 = 2;
const GIGABIT: u64 = 1_000_000;

/// Bounds of a result's size, a tenth of the link's bytes per second: some results fit a piece and some are streamed.
const LARGEST_RESULT_BYTES: u64 = 512_000;
const LEAST_RESULT_BYTES: u64 = 2_000;

/// A short lease: a heartbeat that waits longer on its link would be a death.
const LEASE: &str = "5";

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "network namespaces need root");
    let congestion = Namespace::new()?.inside_run("sysctl -n net.ipv4.tcp_congestion_control")?;
    report.note(format!(
        "results through a shaped link, as stored, of the link's rate; far: {} ms of delay, lossy: {LOSS_PERCENT} % of packets, both \
         ways; plain: one TCP connection on the same link that sends as fast as it can; lease {LEASE} s; congestion control {}; \
         loopback and gigabit both pass a relay without delay",
        FAR.as_millis(),
        congestion.trim()
    ));
    let kbits = if context.quick { &QUICK_KBITS[..] } else { &KBITS[..] };
    let mut cases = Vec::new();
    for &kbit in kbits {
        for (far, lossy) in [(false, false), (true, false), (false, true), (true, true)] {
            cases.push(Case { kbit, far, lossy });
        }
    }
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        for case in &cases {
            if context.wants(&case.name()) {
                context.progress(&case.name());
                measure(context, report, &mut figures, case).await?;
            }
        }
        if context.wants("gigabit") {
            loopback(context, report, &mut figures).await?;
        }
        report.run(figures);
    }
    for case in cases.iter().filter(|case| context.wants(&case.name())) {
        report.promise_at_least(&format!("{}_share_ratio", case.name()), LEAST_SHARE);
        report.promise_always_at_most(&format!("{}_dead_count", case.name()), 0.0);
        report.promise_always_at_most(&format!("{}_revoked_count", case.name()), 0.0);
    }
    if context.wants("gigabit") {
        report.promise_at_least("gigabit_of_loopback_ratio", LEAST_OF_LOOPBACK);
    }
    Ok(())
}

struct Case {
    kbit: u64,
    far: bool,
    lossy: bool,
}

impl Case {
    fn name(&self) -> String {
        let far = if self.far { "_far" } else { "" };
        let lossy = if self.lossy { "_lossy" } else { "" };
        format!("kbit_{}{far}{lossy}", self.kbit)
    }

    fn shape(&self) -> Shape {
        Shape {
            kbit: Some(self.kbit),
            delay: if self.far { FAR } else { Duration::ZERO },
            loss_percent: if self.lossy { LOSS_PERCENT } else { 0 },
        }
    }
}

/// A server with an agent that has results of one size.
struct Site {
    farm: Farm,
    server: Server,
}

impl Site {
    async fn start(context: &Context) -> anyhow::Result<(Site, crate::context::Database)> {
        let database = context.farm_database().await?;
        let farm = context.farm(&database);
        // Each checkout has seconds of results, so that the link alone limits the rate.
        let server = farm.serving("server", &["--lease", LEASE, "--heartbeat", "1", "--checkout-problems", "64"]).await;
        farm.job_type("blob", "blob", json!({})).await;
        Ok((Site { farm, server }, database))
    }

    /// Results of so many bytes for so long, on a link of about that rate. Returns bytes a second from the first to the last.
    async fn rate(&self, bytes: u64, count: u64) -> anyhow::Result<f64> {
        let query = format!(
            "select i::text as key, jsonb_build_object('bytes', {bytes}) as payload from generate_series(1, {count}) i"
        );
        let began = Instant::now();
        let job = self.farm.submit("blob", &query, 1).await;
        let state = self.farm.ended(job, Duration::from_secs(600)).await;
        ensure!(state == "done", "the job is {state}\n{}", self.farm.state().await);
        Ok((bytes * count) as f64 / began.elapsed().as_secs_f64())
    }

    fn agent(&self, name: &str, url: &str) -> Program {
        self.farm.agent_of(name, &[url.to_owned()])
    }

    async fn connected(&self) {
        self.farm.until(Duration::from_secs(60), "select exists (select from pcfarm.workstation)").await;
    }

    /// Times that a workstation was declared dead, and checkouts that were revoked.
    async fn losses(&self) -> (f64, f64) {
        let dead = "select count(*) from pcfarm.event where what = 'workstation dead'";
        let revoked =
            "select count(*) from pcfarm.checkout where ending = 'revoked' and reason not like 'never received%'";
        (self.farm.number(dead).await as f64, self.farm.number(revoked).await as f64)
    }
}

async fn measure(context: &Context, report: &mut Report, figures: &mut Figures, case: &Case) -> anyhow::Result<()> {
    let (site, database) = Site::start(context).await?;
    let link = Link::up(case.shape(), &site.server).await?;
    let (rate, seconds) = ((case.kbit * 125) as f64, context.scaled(30, 6));
    let plain = plain(&link, case, Duration::from_secs(seconds)).await?;
    let mut agent = site.agent("agent", &link.url()).within(&link.namespace);
    agent.start();
    site.connected().await;
    let bytes = (case.kbit * 125 / 10).clamp(LEAST_RESULT_BYTES, LARGEST_RESULT_BYTES);
    let count = (case.kbit * 125 * seconds / bytes).max(2);
    let stored = site.rate(bytes, count).await?;
    report.processed(count);
    let name = case.name();
    figures.add(format!("{name}_plain_ratio"), plain / rate);
    figures.add(format!("{name}_of_rate_ratio"), stored / rate);
    figures.add(format!("{name}_share_ratio"), stored / if case.lossy { rate.min(plain) } else { rate });
    figures.add(format!("{name}_connections_count"), link.relay().connections() as f64);
    let (dead, revoked) = site.losses().await;
    figures.add(format!("{name}_dead_count"), dead);
    figures.add(format!("{name}_revoked_count"), revoked);
    drop((agent, link, site));
    context.drop_database(database).await
}

/// Bytes a second that a plain connection carries from the namespace, by a program that every machine has.
async fn plain(link: &Link, case: &Case, time: Duration) -> anyhow::Result<f64> {
    let sink = TcpListener::bind((link.namespace.outside(), 0)).await.context("a sink")?;
    let address = sink.local_addr()?;
    let sends =
        format!("exec timeout {} cat /dev/zero > /dev/tcp/{}/{}", time.as_secs() + 5, address.ip(), address.port());
    let mut sender = tokio::process::Command::new("ip")
        .args(link.namespace.enter())
        .args(["bash", "-c", &sends])
        .kill_on_drop(true)
        .spawn()
        .context("a sender")?;
    let (mut stream, _) = tokio::time::timeout(Duration::from_secs(30), sink.accept()).await.context("no sender")??;
    let (began, mut bytes, mut buffer) = (Instant::now(), 0_u64, vec![0; 64 << 10]);
    while began.elapsed() < time {
        match tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer)).await {
            Ok(Ok(read)) if read > 0 => bytes += read as u64,
            _ => break,
        }
    }
    let rate = bytes as f64 / began.elapsed().as_secs_f64();
    let _ = stream.shutdown().await;
    sender.kill().await.with_context(|| format!("ending the sender of {}", case.name()))?;
    Ok(rate)
}

/// Results over loopback, and over a link of 1 Gbit/s. Both pass the same kind of relay, which copies every byte.
async fn loopback(context: &Context, report: &mut Report, figures: &mut Figures) -> anyhow::Result<()> {
    let count = context.scaled(2_000, 100);
    for (name, shaped) in [("loopback", false), ("gigabit", true)] {
        context.progress(name);
        let (site, database) = Site::start(context).await?;
        let shape = Shape { kbit: Some(GIGABIT), ..Shape::default() };
        let link = if shaped { Some(Link::up(shape, &site.server).await?) } else { None };
        let near = Relay::start(Ipv4Addr::LOCALHOST, site.server.port, Duration::ZERO).await?;
        let mut agent = match &link {
            Some(link) => site.agent("agent", &link.url()).within(&link.namespace),
            None => site.agent("agent", &format!("http://{}", near.address())),
        };
        agent.start();
        site.connected().await;
        figures.add(format!("{name}_mib_per_second"), site.rate(64_000, count).await? / 1_048_576.0);
        report.processed(count);
        drop((agent, link, near, site));
        context.drop_database(database).await?;
    }
    figures.add_ratio("gigabit_of_loopback_ratio", "gigabit_mib_per_second", "loopback_mib_per_second");
    Ok(())
}
