//! The agent of PC Farm, and the SDK that controllers are written against.
//!
//! A [`Controller`] solves one kind of problem. [`run`] makes a complete agent program of it: it connects
//! to the farm's servers, checks out convoys of problems, solves them on every core that the owner allows,
//! and delivers the results.
//!
//! ```no_run
//! use pcfarm_worker::{Controller, Problem};
//!
//! /// Solves problems such as `{"n": 97}`; the solution is a JSON number.
//! struct SmallestFactor;
//!
//! #[derive(serde::Deserialize)]
//! struct Number {
//!     n: u64,
//! }
//!
//! impl Controller for SmallestFactor {
//!     const NAME: &'static str = "smallest_factor";
//!     type Payload = Number;
//!     type Solution = u64;
//!
//!     fn solve(&self, problem: &Problem<'_, Number>) -> anyhow::Result<u64> {
//!         let n = problem.payload().n;
//!         anyhow::ensure!(n >= 2, "{n} has no prime factor");
//!         Ok((2..).take_while(|f| f * f <= n).find(|f| n % f == 0).unwrap_or(n))
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     pcfarm_worker::run(SmallestFactor)
//! }
//! ```
//!
//! An agent with several controllers is built with [`Agent`]; [`Agent::run_with`] runs one inside another
//! program, with [`Settings`] of its own.
//!
//! A controller shares its agent with everything else that runs there, so it should look at
//! [`Problem::cancelled`] in long loops ([`Controller::solve`] says what becomes of one that does not). Rows
//! that are the same for every problem are cheapest by [`Problem::related_shared`].
//!
//! What an agent promises:
//!
//! - A result is kept until a server has acknowledged or refused it, across reconnections.
//! - Revoked work is neither begun nor delivered, and a running controller is told at once.
//! - Problems that are to run one by one do: each result is acknowledged before the next starts, while other
//!   checkouts use the other cores.
//! - Work is asked for only if a core could do it.
//! - Told to stop, it ends within the grace period and the few seconds that goodbyes may take, whatever
//!   its controllers do.
//!
//! # Features
//!
//! All are on by default, for the agent `pcfarm-worker` of this crate. An agent of one's own builds faster with
//! `default-features = false` and the features that it needs:
//!
//! | feature | adds |
//! | --- | --- |
//! | `wasm` | the controller of modules that job types ship, with a compiler and a sandbox |
//! | `desktop` | on Linux: `session`, the helper in sessions of X11, GNOME, KDE and other Wayland desktops; metered networks by NetworkManager |
//! | `service` | on Linux: `install`, `uninstall`, `status` and `doctor` |
//!
//! The commands of a missing feature, and the setting `wasm`, are refused with the feature's name. Without `desktop` the agent does not
//! work where only a helper could report an idle session.
//!
//! # Modules
//!
//! The modules, in reading order:
//!
//! - [`controller`]: what a controller is, and the problem it is given.
//! - [`steps`]: controllers of several steps, each on the threads of what it depends on.
//! - [`trial`]: a problem without a farm, for controllers' own tests.
//! - [`builtin`]: controllers for trying a farm.
//! - [`agent`]: the complete program.
//! - [`settings`]: what it is told, and [`state_dir`]: who it is.
//! - `credentials`: what it proves itself with.
//! - [`exec`]: controllers that are programs of the agent owner's list.
//! - [`wasm`]: controllers that are modules, which job types ship.
//! - `fed`: lines of JSON, in and out: what those two have in common.
//! - `named`: files by the names that problems know them by.
//! - `files`: contents by their hashes, from the farm, kept for a while.
//! - [`presence`]: whether the workstation's person is there, and what it may do then.
//! - [`sleep`]: whether the farm may wake the PC, and when it goes to sleep.
//! - `local`: its socket, `command`: what people ask it there, `session`: the helper in their sessions.
//! - `drive`: the one loop: wait, decide, act; `goodbye`: its last word.
//! - `inventory`: every decision of it, without I/O or clock.
//! - `slots`: sessions beside its own.
//! - `link`: the connection to one of the servers, kept up for ever.
//! - `pool`: the cores, and `work`, `related`, `solve`, `storable`: from a checkout to results.
//! - `service`: what makes it a service of the system, `doctor`: which step fails where an agent does not work, and `watchdog`:
//!   what its service manager is told.
//! - `missing`: features that it was built without.
//! - `clock`: a clock that runs on while the machine sleeps.
//! - `platform`: what Linux and macOS do in one way and Windows in another.

pub mod agent;
pub mod builtin;
mod command;
pub mod controller;
mod credentials;
#[cfg(all(target_os = "linux", feature = "service"))]
mod doctor;
#[cfg(target_os = "linux")]
pub mod exec;
#[cfg(any(target_os = "linux", feature = "wasm"))]
mod fed;
#[cfg(any(target_os = "linux", feature = "wasm"))]
mod files;
mod named;
#[cfg(unix)]
#[path = "platform/unix.rs"]
mod platform;
#[cfg(windows)]
#[path = "platform/windows.rs"]
mod platform;
pub mod presence;
mod service;
pub mod settings;
pub mod sleep;
pub mod state_dir;
pub mod steps;
pub mod trial;
#[cfg(feature = "wasm")]
pub mod wasm;

/// What an agent decides, without I/O or clock: for simulators.
#[cfg(feature = "faults")]
pub mod decisions {
    pub use crate::inventory::contact::AfterLease;
    pub use crate::inventory::{Action, Ending, Event, Inventory, Profile};
    pub use crate::pool::{Batch, Report};
    pub use crate::work::{Checkout, CheckoutKey};
}

mod clock;
mod drive;
mod entrance;
mod equipment;
mod goodbye;
mod inventory;
mod link;
mod local;
mod machine;
mod manners;
mod missing;
mod pool;
mod related;
#[cfg(any(windows, all(target_os = "linux", feature = "desktop")))]
mod session;
#[cfg(all(target_os = "linux", not(feature = "desktop")))]
#[path = "session/missing.rs"]
mod session;
mod slots;
mod solve;
mod storable;
mod watchdog;
mod work;

pub use agent::{Agent, AgentError, run};
pub use controller::{Controller, NewProblem, Problem};
pub use named::ProblemFile;
pub use settings::Settings;
