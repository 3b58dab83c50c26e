//! The last step before a program: gives up what the program must not have, and becomes it.
//!
//! Runs as a process of its own, with the program's standard input, output and error. It reads a [`Launch`] from the first and
//! leaves what follows to the program. Never returns.

use std::convert::Infallible;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, geteuid, getppid, set_parent_process_death_signal, setrlimit, setsid, umask,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_gid, set_thread_groups, set_thread_uid,
};

use crate::exec::fence::{self, Fence};
use crate::exec::plan::{Launch, read_frame};
use crate::exec::settings;
use crate::manners::Rank;

/// What a shell says of what it cannot start. The nonce on standard error is what counts.
const NOT_STARTED: i32 = 127;

/// The first to go when memory runs out, before the agent and its person's programs.
const OOM_SCORE: &str = "500";

/// Descriptors are bounded as other things are.
const OPEN_FILES: u64 = 1024;

/// Room that allocations may race ahead of the supervisor's look, as a factor of the memory limit.
const DATA_FACTOR: u64 = 2;
const DATA_ROOM: u64 = 256 << 20;

pub fn run() -> ! {
    let mut nonce = String::new();
    let Err(error) = launch(&mut nonce);
    let _ = writeln!(std::io::stderr(), "{nonce}{error:#}");
    std::process::exit(NOT_STARTED)
}

fn launch(nonce: &mut String) -> anyhow::Result<Infallible> {
    // Without a buffer: what follows the frame is the program's.
    let mut stdin = fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let (launch, _): (Launch, _) = read_frame(&mut stdin)?;
    drop(stdin);
    nonce.clone_from(&launch.nonce);
    let plan = &launch.plan;
    setsid().context("a session of its own")?;
    umask(Mode::from_raw_mode(0o077));
    // None of these three is needed for safety.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let _ = rustix::process::setpriority_process(None, plan.nice);
    if plan.is_guest {
        Rank::Guest.take();
    }
    // What runs for one problem has nothing to do beside it.
    let own = if plan.mode == settings::Mode::OneShot { &launch.directory } else { &plan.area };
    let fence = Fence { hidden: &plan.hidden, writable: &plan.writable, own, network: plan.network };
    let fence = if fence::available() { Some(fence.build().context("its fence")?) } else { None };
    limit(&launch).context("its limits")?;
    drop_capabilities().context("its capabilities")?;
    if let Some(user) = plan.user {
        let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid), rustix::fs::Gid::from_raw(user.gid));
        set_thread_groups(&[])
            .and_then(|()| set_thread_gid(gid))
            .and_then(|()| set_thread_uid(uid))
            .context("its user")?;
    }
    set_no_new_privs(true).context("no new privileges")?;
    if let Some(fence) = fence {
        fence.restrict_self().context("its fence")?;
    }
    // After the change of users, which would undo it. The supervisor may have ended before it was said.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    anyhow::ensure!(getppid() == Pid::from_raw(launch.supervisor), "its supervisor has ended");
    close_inherited();
    let as_whom = plan.user.map_or_else(String::new, |user| format!(" (as user {})", user.uid));
    let directory = launch.directory.display();
    std::env::set_current_dir(&launch.directory).with_context(|| format!("its directory {directory}{as_whom}"))?;
    let mut command = Command::new(&plan.path);
    command.args(&launch.args).env_clear().envs(plan.environment.iter().map(|(name, value)| (name, value)));
    for place in ["HOME", "TMPDIR", "PWD"] {
        if !plan.environment.iter().any(|(name, _)| name == place) {
            command.env(place, &launch.directory);
        }
    }
    Err(command.exec()).with_context(|| format!("{}{as_whom}", plan.path.display()))
}

fn limit(launch: &Launch) -> anyhow::Result<()> {
    let limits = &launch.plan.limits;
    let set = |resource, most: u64| {
        let now = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(most);
        setrlimit(resource, Rlimit { current: Some(now), maximum: Some(now) })
    };
    set(Resource::Core, 0)?;
    set(Resource::Nofile, OPEN_FILES)?;
    set(Resource::Fsize, limits.disk_bytes)?;
    set(Resource::Data, limits.memory_bytes.saturating_mul(DATA_FACTOR).saturating_add(DATA_ROOM))?;
    if let Some(bytes) = limits.address_space_bytes {
        set(Resource::As, bytes)?;
    }
    // It counts all that the user runs: what that was is in it. Root has no such limit.
    set(Resource::Nproc, launch.tasks_of_user)?;
    Ok(())
}

/// What root may do beyond its files: with them root would look into other processes, fence or no fence. They go with the
/// program's start, which the bounding set decides; until then they are needed here.
fn drop_capabilities() -> anyhow::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let _ = clear_ambient_capability_set();
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel does not know so many, or root is not what it seems and has none.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let sets = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..sets })?;
    Ok(())
}

/// Rust's own descriptors close by themselves; whoever started the agent may have left others open.
fn close_inherited() {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > 2) {
        let _ = nix::unistd::close(descriptor);
    }
}
