//! An agent whose problems are pure computation, for table `efficiency`.

use pcfarm_bench::spin::{Spin, Spun};
use pcfarm_worker::{Controller, Problem};
use std::process::ExitCode;

struct Spinner;

impl Controller for Spinner {
    const NAME: &'static str = "spin";
    type Payload = Spin;
    type Solution = Spun;

    fn solve(&self, problem: &Problem<'_, Spin>) -> anyhow::Result<Spun> {
        Ok(problem.payload().solve())
    }
}

fn main() -> ExitCode {
    pcfarm_worker::run(Spinner)
}
