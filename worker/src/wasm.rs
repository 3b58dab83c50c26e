//! Controllers that are modules: WASI programs that a job type ships, by the hash of their content.
//!
//! Owns the sandbox. A module has memory, up to a limit, and three streams: questions in, answers out, and words for people,
//! of which the end is kept. It has no files, no network, no arguments and no environment, only a coarse clock and random
//! numbers; and no time that is not looked at, not even in a loop without calls.
//!
//! ```text
//! agent's core ── polls ──► instance on a stack of its own ── reads its next question, or its time is up ──► back to the core
//! ```
//!
//! A module is an ordinary program, which waits for its input between two questions. So an instance is a computation that can
//! stand still: it has a stack of its own, and gives the core back whenever it asks for a line that is not there yet, and a
//! hundred times a second wherever it is. Then the core sees whether it is still wanted and how long it took, and goes on with
//! it or drops it; nothing of it is left then. No thread belongs to an instance, and no signal is needed.
//!
//! A convoy gets instances of its own: what a problem leaves in memory can be seen by the others of its convoy, on the same
//! core, and by nobody else.
//!
//! - [`settings`]: what the agent's owner allows.
//! - `controller`: problems to instances, on the cores of the agent.
//! - `modules`: from a hash to compiled code, once.
//! - `sections`: what is too large to be compiled at all.
//! - `rehearsal`: what would take the compiler too long.
//! - `instance`: one run of a module, question by question.
//! - `preview1`: what a module may call.
//! - `ticker`: what makes instances give the core back.

pub(crate) mod controller;
mod instance;
mod modules;
mod preview1;
#[cfg(target_os = "linux")]
pub(crate) mod rehearsal;
mod sections;
pub mod settings;
mod ticker;
