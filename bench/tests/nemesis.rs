//! Faults at random moments while jobs run; then everybody is well again, and everything must be there, once.
//!
//! `PCFARM_SOAK_SECONDS` says for how long, `PCFARM_SEED` which faults.

use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG};
use pcfarm_bench::nemesis::Nemesis;
use pcfarm_bench::program::Program;
use serde_json::json;

const RAGE: Duration = Duration::from_secs(20);

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[tokio::test]
async fn nothing_is_lost_or_doubled_whatever_dies() {
    let seed = from_environment("PCFARM_SEED").unwrap_or_else(rand::random);
    let length = from_environment("PCFARM_SOAK_SECONDS").map_or(RAGE, Duration::from_secs);
    eprintln!("PCFARM_SEED={seed}");
    let farm = Farm::new().await;
    // A server's or an agent's death costs attempts to what had been sent out to run alone: not so many as this.
    for (name, controller) in [("quick", "digest"), ("slow", "digest"), ("flaky", "digest")] {
        farm.job_type(name, controller, json!({"max_attempts": 100})).await;
    }
    let (mut a, mut b) = tokio::join!(farm.serving("a", &["--no-recycler"]), farm.serving("b", &["--no-recycler"]));
    let mut agents: Vec<Program> = ["one", "two", "three", "four"].map(|name| farm.working(name, &[&a, &b])).into();
    let mut recycler = farm.recycler("recycler", &["--every", "1"]);
    recycler.start();
    let scale = i64::try_from(length.as_secs()).expect("a sensible length");
    let flaky = "select 'problem ' || i as key, jsonb_build_object('n', i, 'ms', i % 30, 'fails', (i % 7 = 0)::int,
        'panic', i % 2 = 0) as payload from generate_series(1, $count) i";
    let jobs = [
        farm.submit_sleeps("quick", 100 * scale, 5, 25).await,
        farm.submit_sleeps("slow", 2 * scale, 300, 3).await,
        farm.submit("flaky", &flaky.replace("$count", &(20 * scale).to_string()), 10).await,
    ];
    let mut victims: Vec<&mut Program> = vec![&mut a.program, &mut b.program, &mut recycler];
    victims.extend(&mut agents);
    let blows = Nemesis::new(seed).rage(&mut victims, length).await;
    eprintln!("{blows} blows");
    a.ready().await;
    b.ready().await;
    for job in jobs {
        assert_eq!(farm.ended(job, LONG).await, "done", "{}", farm.state().await);
    }
    farm.check(&jobs).await;
}
