//! What only a process in a person's session can tell.

use std::io;
use std::time::Duration;

use windows_sys::Win32::System::Console::{FreeConsole, GetConsoleProcessList};
use windows_sys::Win32::System::RemoteDesktop::ProcessIdToSessionId;
use windows_sys::Win32::System::SystemInformation::GetTickCount;
use windows_sys::Win32::UI::Input::KeyboardAndMouse::{GetLastInputInfo, LASTINPUTINFO};
use windows_sys::Win32::UI::Shell::{
    QUNS_BUSY, QUNS_PRESENTATION_MODE, QUNS_RUNNING_D3D_FULL_SCREEN, SHQueryUserNotificationState,
};

use super::done;

/// Since somebody touched keyboard or mouse in this process's session.
#[allow(unsafe_code)]
pub fn idle() -> io::Result<Duration> {
    let size = u32::try_from(size_of::<LASTINPUTINFO>()).expect("a few bytes");
    let mut last = LASTINPUTINFO { cbSize: size, dwTime: 0 };
    // SAFETY: a structure that says its size, which it fills.
    done(unsafe { GetLastInputInfo(&mut last) })?;
    // SAFETY: it takes nothing.
    let now = unsafe { GetTickCount() };
    // Both count milliseconds of the machine in 32 bits, and begin anew every 50 days.
    Ok(Duration::from_millis(now.wrapping_sub(last.dwTime).into()))
}

/// Whether a program fills the screen, or shows a presentation; nothing, if the session's shell does not tell.
#[allow(unsafe_code)]
pub fn program_fills_screen() -> Option<bool> {
    let mut state = 0;
    // SAFETY: a place for its answer.
    let result = unsafe { SHQueryUserNotificationState(&mut state) };
    (result == 0).then_some(matches!(state, QUNS_BUSY | QUNS_RUNNING_D3D_FULL_SCREEN | QUNS_PRESENTATION_MODE))
}

/// The number of this process's session. Services have 0, where nobody sits.
#[allow(unsafe_code)]
pub fn own_session() -> io::Result<u32> {
    let mut session = 0;
    // SAFETY: a process that lives, for it is this one, and a place for the answer.
    done(unsafe { ProcessIdToSessionId(std::process::id(), &mut session) })?;
    Ok(session)
}

/// Closes the window that was opened for this process alone, as it is at the beginning of a session. One that somebody else has,
/// such as a shell, stays.
#[allow(unsafe_code)]
pub fn leave_own_console() {
    let mut processes = [0; 2];
    // SAFETY: room for two processes, and it is told so; more it only counts.
    let count = unsafe { GetConsoleProcessList(processes.as_mut_ptr(), 2) };
    if count == 1 {
        // SAFETY: it takes nothing. What is printed from now on goes nowhere.
        unsafe { FreeConsole() };
    }
}
