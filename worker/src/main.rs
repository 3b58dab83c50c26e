//! An agent with the built-in controllers `echo`, `sleep` and `fail`, for trying a farm.

use std::process::ExitCode;

use pcfarm_worker::Agent;
use pcfarm_worker::builtin::{Echo, Fail, Sleep};

fn main() -> ExitCode {
    Agent::new().controller(Echo).controller(Sleep).controller(Fail).run()
}
