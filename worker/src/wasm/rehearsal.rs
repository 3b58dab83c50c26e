//! A compiler that can be stopped: a process that compiles a module once for nothing, before the agent does.
//!
//! Owns how much of a core and of memory a module may take to be compiled. How long that is cannot be told from its size: functions of
//! nothing but loops among a thousand variables take a thousand times as long as a program of the same size. The code itself is made by
//! the agent again: to take it from elsewhere is to trust it unchecked.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio, exit};

use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit};
use tracing::warn;
use wasmtime::Module;

use crate::exec::{COMPILE, orphans};
use crate::manners::Rank;
use crate::wasm::modules::{self, Objection};
use crate::wasm::sections::MODULE_BYTES_LIMIT;

/// Of a core. Interpreters of whole languages take a few.
const SECONDS: u64 = 60;

/// After which nobody catches the signal any more.
const GRACE_SECONDS: u64 = 5;

const MEMORY_BYTES: u64 = 2 << 30;

/// Smaller modules are compiled at once, in a second or two at worst.
const SMALL_BYTES: usize = 16 << 10;

/// What there is against a module; nothing if it may be compiled here. `binary` is this program.
pub fn against(binary: &Path, module: &[u8]) -> Option<Objection> {
    if module.len() <= SMALL_BYTES {
        return None;
    }
    match compile(binary, module) {
        Ok(status) => objection(status.signal()?),
        Err(error) => {
            warn!(%error, "a module's compiler cannot be started: it is compiled without having been tried");
            None
        }
    }
}

/// A compiler that may not have more memory aborts. What else ends it comes from outside: a person, or a kernel without memory.
fn objection(signal: i32) -> Option<Objection> {
    Some(if signal == Signal::XCPU.as_raw() {
        Objection::ForGood(format!(
            "the module takes more than {SECONDS} s of a core to be compiled: it has functions that are too large"
        ))
    } else if signal == Signal::ABORT.as_raw() {
        let memory = MEMORY_BYTES >> 30;
        Objection::ForGood(format!("the module's compiler has given up: it may use {memory} GiB of memory"))
    } else {
        Objection::Interrupted(signal)
    })
}

fn compile(binary: &Path, module: &[u8]) -> io::Result<ExitStatus> {
    let mut command = Command::new(binary);
    let parent = getpid().as_raw_nonzero().to_string();
    command.args([COMPILE, &SECONDS.to_string(), &parent]).env_clear().current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = orphans::start(&mut command)?;
    // One that has ended does not read.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(module));
    let status = child.wait();
    orphans::ended(&child, status.as_ref().ok().copied());
    status
}

/// That process. Its one word is how it ends: by a signal, if the module takes too much.
pub fn run() -> ! {
    let number = |at| std::env::args().nth(at).and_then(|text| text.parse::<u64>().ok());
    let seconds = number(2).unwrap_or(SECONDS);
    end_with(number(3).and_then(|parent| Pid::from_raw(i32::try_from(parent).ok()?)));
    let set =
        |resource, least: u64, most: u64| setrlimit(resource, Rlimit { current: Some(least), maximum: Some(most) });
    let _ = set(Resource::Core, 0, 0);
    let limited = set(Resource::Cpu, seconds, seconds + GRACE_SECONDS)
        .and_then(|()| set(Resource::Data, MEMORY_BYTES, MEMORY_BYTES));
    if let Err(error) = limited {
        eprintln!("a compiler's limits: {error}");
        exit(1);
    }
    Rank::Guest.take();
    let mut module = Vec::new();
    if io::stdin().take(MODULE_BYTES_LIMIT).read_to_end(&mut module).is_ok()
        && let Ok(engine) = modules::engine()
    {
        // What is wrong with it the agent finds as quickly.
        drop(Module::new(&engine, &module));
    }
    exit(0)
}

/// Nobody wants the answer of one whose agent was killed, and it may take a minute. The agent's thread waits as long as this lives.
fn end_with(parent: Option<Pid>) {
    let told = set_parent_process_death_signal(Some(Signal::KILL));
    if told.is_err() || parent.is_none() || getppid() != parent {
        eprintln!("a compiler's agent has ended");
        exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_limits_are_the_modules_fault() {
        for signal in [Signal::XCPU, Signal::ABORT] {
            assert!(matches!(objection(signal.as_raw()), Some(Objection::ForGood(_))), "{signal:?}");
        }
        for signal in [Signal::KILL, Signal::TERM, Signal::BUS, Signal::HUP] {
            assert_eq!(objection(signal.as_raw()), Some(Objection::Interrupted(signal.as_raw())));
        }
    }
}
