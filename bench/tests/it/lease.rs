//! Programs whose agent has lost the farm: each stops before the farm hands its problem to another, for every cause of the loss, and
//! none stops on a link that is only slow.

use std::path::PathBuf;
use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::links::{Link, Shape};
use pcfarm_bench::program::Program;
use pcfarm_proto::ids::JobId;
use serde_json::json;

use crate::links::can_shape;

/// Notes the time ten times a second, for that many seconds, and is silent then.
const TICKER: &str = r#"i=0; echo begun >> "$0.begun"; while [ $i -lt $(($1 * 10)) ]; do date +%s.%N >> "$0"; sleep 0.1; i=$((i + 1)); done"#;

/// A program that ticks, on the only workstation of its farm.
pub struct Ticker {
    ticks: PathBuf,
}

impl Ticker {
    pub async fn new(farm: &Farm) -> Ticker {
        farm.job_type("tick", "exec:tick", json!({})).await;
        let directory = farm.path("ticks");
        std::fs::create_dir(&directory).expect("a directory");
        Ticker { ticks: directory.join("ticks") }
    }

    /// Gives an agent the program.
    pub fn on(&self, agent: Program, farm: &Farm) -> Program {
        let settings = farm.path("programs.toml");
        let program = format!(
            "[[program]]\nname = \"tick\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\nanswer = \"text\"\ntrusted = true\n\
             args = [\"-c\", {TICKER:?}, {:?}, \"{{key}}\"]\nwritable = [{:?}]\n{}",
            self.ticks,
            self.ticks.parent().expect("a directory"),
            // The user of other programs may not enter the test's directory.
            if rustix::process::geteuid().is_root() { "run_as = \"root\"\n" } else { "" }
        );
        std::fs::write(&settings, program).expect("written");
        agent
            .arguments(["--config".as_ref(), settings.as_os_str()])
            .arguments(["--work-dir".as_ref(), farm.path("ticker.work").as_os_str()])
    }

    /// Submits a problem of so many seconds, and waits until it ticks.
    pub async fn begins(&self, farm: &Farm, seconds: u32) -> JobId {
        let query = format!("select '{seconds}' as key, 'null'::jsonb as payload");
        let job = farm.submit("tick", &query, 1).await;
        let begun = async {
            while self.last_tick().is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(SOON, begun).await.expect("the program begins");
        job
    }

    fn last_tick(&self) -> Option<f64> {
        let ticks = std::fs::read_to_string(&self.ticks).ok()?;
        ticks.lines().rev().find_map(|line| line.parse().ok())
    }

    /// How often the program was started.
    fn starts(&self) -> usize {
        let begun = std::fs::read_to_string(self.ticks.with_extension("begun")).unwrap_or_default();
        begun.lines().count()
    }

    /// The program has stopped before the farm declared its workstation dead.
    pub async fn has_stopped_in_time(&self, farm: &Farm) {
        farm.until(LONG, "select exists (select from pcfarm.workstation where state = 'dead')").await;
        let dead = "select extract(epoch from since)::float8 from pcfarm.workstation where state = 'dead'";
        let dead: f64 = farm.account(dead).await.get(0);
        // Long enough for a program that runs on to be seen.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let last = self.last_tick().expect("it has begun");
        assert!(last <= dead, "the program ran on for {} s after the workstation was declared dead", last - dead);
    }
}

/// A farm with such a workstation.
struct Site {
    farm: Farm,
    server: Server,
    ticker: Ticker,
}

impl Site {
    async fn start(lease: &str) -> Site {
        let farm = Farm::new().await;
        let server = farm.serving("server", &["--lease", lease, "--checkout-problems", "1"]).await;
        let ticker = Ticker::new(&farm).await;
        Site { farm, server, ticker }
    }

    fn agent(&self, url: String) -> Program {
        self.ticker.on(self.farm.agent_of("ticker", &[url]), &self.farm)
    }

    async fn begins(&self, seconds: u32) -> JobId {
        self.ticker.begins(&self.farm, seconds).await
    }

    async fn has_stopped_in_time(&self) {
        self.ticker.has_stopped_in_time(&self.farm).await;
    }
}

#[tokio::test]
async fn a_program_stops_before_its_problem_is_handed_to_another() {
    if !can_shape() {
        return;
    }
    let site = Site::start("5").await;
    let link = Link::up(Shape::default(), &site.server).await.expect("a link");
    let mut agent = site.agent(link.url()).within(&link.namespace);
    agent.start();
    site.begins(600).await;
    link.namespace.cut(true).expect("cut");
    site.has_stopped_in_time().await;
}

#[tokio::test]
async fn a_program_stops_with_the_lease_of_an_agent_that_is_stopped() {
    let site = Site::start("5").await;
    let mut agent = site.agent(site.server.url());
    agent.start();
    site.begins(600).await;
    agent.freeze();
    site.has_stopped_in_time().await;
    // It gives the problem back, and the farm hands it out anew: the program of before is gone.
    agent.thaw();
    let starts = site.ticker.starts();
    let begins_anew = async {
        while site.ticker.starts() == starts {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, begins_anew).await.expect("the problem is handed out again");
}

#[tokio::test]
async fn a_server_that_is_killed_has_promised_no_more_than_another_keeps() {
    let mut site = Site::start("5").await;
    let _other = site.farm.serving("other", &["--lease", "5"]).await;
    let mut agent = site.agent(site.server.url());
    agent.start();
    site.begins(600).await;
    site.server.program.kill();
    site.has_stopped_in_time().await;
}

#[tokio::test]
async fn no_program_stops_on_a_slow_link_with_a_short_lease() {
    if !can_shape() {
        return;
    }
    let site = Site::start("2").await;
    let shape = Shape { kbit: Some(64), delay: Duration::from_millis(300), ..Shape::default() };
    let link = Link::up(shape, &site.server).await.expect("a link");
    let mut agent = site.agent(link.url()).within(&link.namespace);
    agent.start();
    site.farm.job_type("blob", "blob", json!({})).await;
    let job = site.begins(8).await;
    // Its other core has results that fill the link meanwhile.
    let query = "select i::text as key, jsonb_build_object('bytes', 20000) as payload from generate_series(1, 4) i";
    let blobs = site.farm.submit("blob", query, 1).await;
    assert_eq!(site.farm.ended(job, LONG).await, "done");
    assert_eq!(site.farm.ended(blobs, LONG).await, "done");
    assert_eq!(site.ticker.starts(), 1, "it was stopped and begun anew: {}", agent.log());
}
