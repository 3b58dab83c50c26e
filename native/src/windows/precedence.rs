//! How far behind others a process and its threads are.

use std::io;

use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentThread, IDLE_PRIORITY_CLASS, SetPriorityClass, SetThreadPriority, THREAD_PRIORITY_IDLE,
};

use super::done;

/// This process and all that it starts run when nobody else wants to. Not `PROCESS_MODE_BACKGROUND_BEGIN`: it takes the process's
/// memory away as well.
#[allow(unsafe_code)]
pub fn give_precedence() -> io::Result<()> {
    // SAFETY: it takes nothing; what it gives stands for this process and needs no closing.
    let this = unsafe { GetCurrentProcess() };
    // SAFETY: the process is this one.
    done(unsafe { SetPriorityClass(this, IDLE_PRIORITY_CLASS) })
}

/// This thread runs when no other of any process wants to, those of its own process included.
#[allow(unsafe_code)]
pub fn fall_behind() -> io::Result<()> {
    // SAFETY: it takes nothing; what it gives stands for this thread and needs no closing.
    let this = unsafe { GetCurrentThread() };
    // SAFETY: the thread is this one.
    done(unsafe { SetThreadPriority(this, THREAD_PRIORITY_IDLE) })
}
