//! A named pipe for whoever sits at this machine, and for nobody else.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr;

use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};
use windows_sys::Win32::Foundation::LocalFree;
use windows_sys::Win32::Security::Authorization::{
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{PSECURITY_DESCRIPTOR, SECURITY_ATTRIBUTES};
use windows_sys::Win32::System::Pipes::GetNamedPipeClientSessionId;
use windows_sys::w;

use super::done;

/// Read and write, but not FILE_CREATE_PIPE_INSTANCE: who may ask the agent something must not answer in its place.
const ASKING: u32 = 0x0012_019b;

/// All to the system, to administrators and to whoever made it; [`ASKING`] to those who are logged on at this machine, by its keyboard
/// or by a remote desktop (IU).
const DESCRIPTOR: *const u16 = w!("D:(A;;GA;;;SY)(A;;GA;;;BA)(A;;GA;;;OW)(A;;0x0012019b;;;IU)");

/// So that a server learns who asks, and cannot act in that person's name: SECURITY_IDENTIFICATION.
const IDENTIFICATION: u32 = 0x0001_0000;

/// One end of a pipe, for the next who asks. `is_first`: it is an error if somebody has one of that name. Others than those of this
/// machine are refused.
#[allow(unsafe_code)]
pub fn listen(name: &OsStr, is_first: bool) -> io::Result<NamedPipeServer> {
    let descriptor = Descriptor::new()?;
    let mut attributes = SECURITY_ATTRIBUTES {
        nLength: u32::try_from(size_of::<SECURITY_ATTRIBUTES>()).expect("a few bytes"),
        lpSecurityDescriptor: descriptor.0,
        bInheritHandle: 0,
    };
    let mut options = ServerOptions::new();
    options.first_pipe_instance(is_first).reject_remote_clients(true);
    // SAFETY: valid attributes, with a descriptor that lives until the end of this function.
    unsafe { options.create_with_security_attributes_raw(name, ptr::from_mut(&mut attributes).cast()) }
}

/// The number of the session of whoever is at the other end.
#[allow(unsafe_code)]
pub fn session_of_client(pipe: &NamedPipeServer) -> io::Result<u32> {
    let mut session = 0;
    // SAFETY: a pipe that is open, and a place for the answer.
    done(unsafe { GetNamedPipeClientSessionId(pipe.as_raw_handle(), &mut session) })?;
    Ok(session)
}

/// The other end. What is read from it and written to it waits for as long as it takes.
pub fn connect(name: &Path) -> io::Result<File> {
    File::options().read(true).write(true).access_mode(ASKING).security_qos_flags(IDENTIFICATION).open(name)
}

/// [`DESCRIPTOR`] as the system has it.
struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    #[allow(unsafe_code)]
    fn new() -> io::Result<Descriptor> {
        let mut descriptor = ptr::null_mut();
        // SAFETY: a text that ends with a zero, and a place for the answer; its length is not asked for.
        let answer = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                DESCRIPTOR,
                SDDL_REVISION_1,
                &mut descriptor,
                ptr::null_mut(),
            )
        };
        done(answer)?;
        Ok(Descriptor(descriptor))
    }
}

impl Drop for Descriptor {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was allocated so by the call that made it, and is not used any more.
        unsafe { LocalFree(self.0) };
    }
}
