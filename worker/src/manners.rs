//! How far behind everybody else a guest's threads are.
//!
//! Owns the two ranks of an agent on a desk. What computes (cores, pools of steps, and all that they start: programs, their
//! supervisors, compilers of modules) has the idle class of the kernel's scheduler, which gives it what nobody else wants, and with it
//! the idle class for disks. What waits (the connection, the sources of input) is nice, and no more: it needs a few milliseconds
//! in five seconds, and whoever comes back is noticed before anything that computes. Where nobody sits, pools of steps are in the
//! idle class all the same, behind what the cores compute.
//!
//! Set before the first of these threads starts, and never taken back: who has no privileges cannot.

#[cfg(target_os = "linux")]
use std::sync::Once;

use tracing::warn;

/// The steps to the lowest that there is.
#[cfg(unix)]
const LOWEST_PRECEDENCE: i32 = 19;

/// What computes on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rank {
    /// As the process is.
    #[default]
    AsStarted,
    /// Behind whatever a person does.
    Guest,
}

impl Rank {
    /// Of an agent, by whether anybody sits there.
    pub fn of(is_unattended: bool) -> Rank {
        if is_unattended { Rank::AsStarted } else { Rank::Guest }
    }

    /// Takes this rank for the calling thread, and all that it starts.
    pub fn take(self) {
        match self {
            Rank::AsStarted => {}
            Rank::Guest => fall_behind(),
        }
    }

    /// The calling thread's.
    #[cfg(target_os = "linux")]
    pub fn of_this_thread() -> Rank {
        if is_behind() { Rank::Guest } else { Rank::AsStarted }
    }
}

/// Every thread from now on is nice; the kernel's order for disks follows it. Who may not go behind is behind already.
pub fn give_precedence() {
    #[cfg(unix)]
    let given = rustix::process::nice(LOWEST_PRECEDENCE);
    #[cfg(windows)]
    let given = pcfarm_native::windows::give_precedence();
    if let Err(error) = given {
        warn!(%error, "the agent has the precedence of any program");
    }
}

#[cfg(target_os = "linux")]
fn fall_behind() {
    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id,
    };
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    // Behind the class it sets what `nice` has, to no more than is usual: who is nice and has no privileges may not, which
    // is an error that does no harm, and whoever may is nice again at once.
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
    let _ = rustix::process::setpriority_process(None, LOWEST_PRECEDENCE);
    if !is_behind() {
        // Threads of pools come and go.
        static SAID: Once = Once::new();
        SAID.call_once(|| warn!(error = ?set.err(), "what computes has the precedence of any nice program"));
    }
}

#[cfg(windows)]
fn fall_behind() {
    if let Err(error) = pcfarm_native::windows::fall_behind() {
        warn!(%error, "what computes has the precedence of any other thread of this process");
    }
}

/// macOS has no class behind all others that would use all of its cores: being nice is all.
#[cfg(target_os = "macos")]
fn fall_behind() {}

#[cfg(target_os = "linux")]
fn is_behind() -> bool {
    use thread_priority::{NormalThreadSchedulePolicy, ThreadSchedulePolicy, thread_schedule_policy};
    matches!(thread_schedule_policy(), Ok(ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle)))
}

/// Before the programs that it must end, which only root may be.
#[cfg(target_os = "linux")]
pub fn go_ahead(nice: i32) {
    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
        thread_native_id,
    };
    if rustix::process::geteuid().is_root() {
        let usual = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
        let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, usual);
    }
    let _ = rustix::process::setpriority_process(None, nice);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    /// The 41st field of `stat`, behind the name.
    fn class(task: &str) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{task}/stat")).expect("this is Linux");
        let (_, fields) = stat.rsplit_once(')').expect("it has a name");
        fields.split_ascii_whitespace().nth(38).expect("it has so many fields").to_owned()
    }

    #[test]
    fn a_guest_and_what_it_starts_are_behind_and_nobody_else_is() {
        const IDLE: &str = "5";
        std::thread::spawn(|| {
            Rank::AsStarted.take();
            assert_eq!((class("thread-self").as_str(), Rank::of_this_thread()), ("0", Rank::AsStarted));
            Rank::Guest.take();
            assert_eq!((class("thread-self").as_str(), Rank::of_this_thread()), (IDLE, Rank::Guest));
            let child = std::thread::spawn(|| class("thread-self"));
            assert_eq!(child.join().expect("it ends"), IDLE);
            let said = Command::new("cat").arg("/proc/self/stat").output().expect("it runs");
            let said = String::from_utf8(said.stdout).expect("text");
            let fields: Vec<&str> = said.rsplit_once(')').expect("a name").1.split_ascii_whitespace().collect();
            assert_eq!((fields[16], fields[38]), ("19", IDLE), "its nice value and its class");
        })
        .join()
        .expect("it is so");
        let other = std::thread::spawn(|| class("thread-self"));
        assert_eq!(other.join().expect("it ends"), class("thread-self"));
    }
}
