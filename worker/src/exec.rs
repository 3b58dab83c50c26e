//! Controllers that are programs: anything on the agent owner's list.
//!
//! Owns what stands between a problem and a program that knows nothing of a farm and may be hostile. Nothing is run that the
//! owner has not named, and never through a shell unless a shell is what was named.
//!
//! ```text
//! agent ── frames on two pipes ──► supervisor ── stdin, stdout, stderr ──► program ──► whatever it starts
//!   one per core and program         this binary again, without secrets      fenced, limited, cleaned
//! ```
//!
//! The supervisor is the subreaper of all that the program starts, so that children which outlive their parent, in sessions
//! of their own, come back to it. What happens when one of them ends:
//!
//! | ends | then |
//! | --- | --- |
//! | agent, at any moment, by any signal | the supervisor reads the end of its requests, ends the tree, exits |
//! | agent, stopped (SIGSTOP) or hung, on an attended workstation | the supervisor stops the tree within 3 s, and lets it go on at the agent's next word |
//! | supervisor | the program gets SIGKILL from the kernel, and what it has started comes to the agent, which ends it; the agent fails the problem, and starts another |
//! | program, while it has a problem | that problem fails, with exit code and the end of standard error; the rest of the tree is ended; another is started for the next problem |
//! | program, while it has none | another is started with the next problem, which does not notice |
//! | checkout (revoked, time limit, suspension) | as when the agent ends |
//!
//! - [`settings`]: the owner's list, as it is written.
//! - `arguments`: templates of arguments. `variables`: a program's environment.
//! - `plan`: what agent, supervisor and launcher say to each other.
//! - `controller`: problems to programs, on the cores of the agent.
//! - `instance`: the agent's end of one supervisor.
//! - `directory`: where programs work, and that nothing stays there.
//! - `space`: how much is in there, and its removal, whatever a program has made of it.
//! - `outputs`: the files that a program has made for the farm.
//! - `supervisor`, `running`: one program and its tree, from start to end.
//! - `silence`: the program stands still while its agent is silent.
//! - `tree`: finding and ending all that descends from a process.
//! - `orphans`: what a supervisor leaves that was killed.
//! - `launcher`, `fence`: what is given up before the program is.

mod arguments;
pub(crate) mod controller;
mod devices;
pub(crate) mod directory;
pub(crate) mod fence;
mod instance;
mod launcher;
pub(crate) mod orphans;
mod outputs;
pub(crate) mod plan;
mod running;
pub mod settings;
mod silence;
mod space;
mod supervisor;
mod tree;
mod variables;

/// The first argument that makes this binary a supervisor or a launcher.
const SUPERVISE: &str = "__pcfarm-supervise";
const LAUNCH: &str = "__pcfarm-launch";
/// And a compiler of modules.
#[cfg(feature = "wasm")]
pub(crate) const COMPILE: &str = "__pcfarm-compile";

/// Becomes a supervisor, and does not return, if this process was started as one. [`Agent::run`] does this first. A
/// program that calls [`Agent::run_with`] and whose settings name programs, or that runs modules, calls it at the beginning of its `main`, and
/// names itself as [`Settings::supervisor`].
///
/// [`Agent::run`]: crate::Agent::run
/// [`Agent::run_with`]: crate::Agent::run_with
/// [`Settings::supervisor`]: crate::Settings::supervisor
pub fn supervise_if_asked() {
    match std::env::args_os().nth(1) {
        Some(first) if first == SUPERVISE => supervisor::run(),
        Some(first) if first == LAUNCH => launcher::run(),
        #[cfg(feature = "wasm")]
        Some(first) if first == COMPILE => crate::wasm::rehearsal::run(),
        Some(_) | None => {}
    }
}
