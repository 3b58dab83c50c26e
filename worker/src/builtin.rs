//! Controllers for trying a farm, without a computation of one's own.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::controller::{Controller, Problem};

/// `echo`: the solution is the payload.
pub struct Echo;

/// `sleep`: waits for `{"ms": n}` milliseconds and returns the payload. Stops early when it is cancelled,
/// unless it is `"deaf": true`: to see what a farm does about controllers that never look.
pub struct Sleep;

/// `fail`: fails with the message of `{"message": "…"}`.
pub struct Fail;

/// How soon a sleeping problem notices that it was cancelled.
const SLEEP_STEP: Duration = Duration::from_millis(20);

#[derive(Clone, Deserialize, serde::Serialize)]
pub struct Pause {
    pub ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deaf: bool,
}

#[derive(Deserialize)]
pub struct Excuse {
    pub message: String,
}

impl Controller for Echo {
    const NAME: &'static str = "echo";
    type Payload = Box<RawValue>;
    type Solution = Box<RawValue>;

    fn solve(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Box<RawValue>> {
        Ok(problem.payload().clone())
    }
}

impl Controller for Sleep {
    const NAME: &'static str = "sleep";
    type Payload = Pause;
    type Solution = Pause;

    fn solve(&self, problem: &Problem<'_, Pause>) -> anyhow::Result<Pause> {
        let end = Instant::now() + Duration::from_millis(problem.payload().ms);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(problem.payload().clone());
            }
            anyhow::ensure!(problem.payload().deaf || !problem.cancelled(), "cancelled in its sleep");
            std::thread::sleep(left.min(SLEEP_STEP));
        }
    }
}

impl Controller for Fail {
    const NAME: &'static str = "fail";
    type Payload = Excuse;
    type Solution = ();

    fn solve(&self, problem: &Problem<'_, Excuse>) -> anyhow::Result<()> {
        anyhow::bail!("{}", problem.payload().message)
    }
}
