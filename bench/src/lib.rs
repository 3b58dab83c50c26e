//! The fault harness and the benchmarks: real servers, agents and recyclers over a real PostgreSQL. Nothing here is part
//! of a farm.
//!
//! What must be true whatever happens:
//!
//! - [`farm`]: a database and programs around it, for one test; [`program`]: one process that can be killed, frozen
//!   and started again
//! - [`puzzle`]: the problems that tests load, what `fault-agent` makes of them, and the same computed directly
//! - [`truth`]: what must be true of the database at any time, and when jobs have ended
//! - [`asking`]: a client that submits under a key until it is told that its job is loaded
//! - [`chaos`]: the fault harness and the bugs that it must find, by `pcfarm-chaos`; [`postgres`]: PostgreSQL's processes,
//!   to be hurt
//! - [`links`]: network namespaces whose links are slow, far or lossy
//! - [`left_out`]: what tests say that are left out on this machine
//! - `simulate`: the decisions of agents and servers on a clock that jumps, from a seed; only with the feature `faults`
//!
//! How fast it is:
//!
//! - [`schedules`]: schedules by the thousand, and what they have triggered
//! - [`tables`]: each table of figures, by `pcfarm-bench TABLE`
//! - [`context`]: the durable PostgreSQL that figures are measured on; [`night`]: a measured job; [`pointer`]: the limit
//! - [`spin`]: problems of pure computation, and [`direct`]: the same without a farm
//! - [`holding`]: problems that hold a connection, and problems that need a core
//! - [`light`]: thousands of workstations in one process
//! - [`desk`]: a desk with a keyboard, and what computes there; [`seat`]: the same with a console, or a session of X11 or Wayland
//! - [`report`], [`plot`]: figures, their medians, promises; [`machine`], [`usage`]: what they were measured on, and
//!   what it cost

pub mod asking;
pub mod chaos;
pub mod context;
pub mod desk;
pub mod direct;
pub mod farm;
pub mod holding;
pub mod installed;
pub mod left_out;
pub mod light;
pub mod links;
pub mod machine;
pub mod night;
pub mod plot;
pub mod pointer;
pub mod postgres;
pub mod program;
pub mod puzzle;
pub mod report;
pub mod schedules;
pub mod seat;
#[cfg(feature = "faults")]
pub mod simulate;
pub mod spin;
pub mod tables;
pub mod truth;
pub mod usage;
