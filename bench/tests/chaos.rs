//! A short run of the fault harness. `PCFARM_SEED` says which faults; `scripts/chaos` runs as many as one likes.

use std::os::unix::fs::PermissionsExt;

use pcfarm_bench::chaos::{Plan, run};

const FAULTS: usize = 10;

#[tokio::test]
async fn nothing_is_lost_or_doubled_whatever_happens() {
    let seed = std::env::var("PCFARM_SEED").map_or_else(
        |_| u64::from(rand::random::<u32>()),
        |text| text.parse().unwrap_or_else(|_| panic!("PCFARM_SEED is not a number: {text}")),
    );
    eprintln!("PCFARM_SEED={seed}");
    let directory = tempfile::Builder::new()
        .prefix("pcfarm-chaos-")
        .permissions(std::fs::Permissions::from_mode(0o711)) // PostgreSQL's account must pass through root's
        .tempdir()
        .expect("a temporary directory");
    let outcome =
        run(directory.path(), Plan { faults: FAULTS, ..Plan::of(seed) }).await.expect("a farm that can be hurt");
    assert!(outcome.judgement.is_clean(), "{}", outcome.text());
}
