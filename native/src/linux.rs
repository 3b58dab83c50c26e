//! Input devices of the kernel: the range of an axis, and whether a program keeps a device for itself (linux/input.h).

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Opcode, ioctl, opcode};

const GROUP: u8 = b'E';

/// `EVIOCGRAB`.
const GRAB: Opcode = opcode::write::<i32>(GROUP, 0x90);

/// `EVIOCGABS` of the axis 0.
const ABS: u8 = 0x40;

/// `struct input_absinfo`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Absinfo {
    value: i32,
    minimum: i32,
    maximum: i32,
    fuzz: i32,
    flat: i32,
    resolution: i32,
}

macro_rules! range_of {
    ($device:expr, $code:expr, $($known:literal)*) => {
        match $code {
            $($known => {
                // SAFETY: the request fills one `input_absinfo`, as its number says.
                let getter = unsafe { Getter::<{ opcode::read::<Absinfo>(GROUP, ABS + $known) }, Absinfo>::new() };
                // SAFETY: the request is read-only, and a file that is no input device refuses it.
                unsafe { ioctl($device, getter) }.ok().map(|info| (info.minimum, info.maximum))
            })*
            _ => None,
        }
    };
}

/// Least and greatest value of an axis of sticks, wheels, pedals, hats and pointers; none where that is not known.
#[allow(unsafe_code)]
pub fn axis_range(device: BorrowedFd<'_>, code: u16) -> Option<(i32, i32)> {
    range_of!(device, code, 0 1 2 3 4 5 6 7 8 9 10 16 17 18 19 20 21 22 23 24 25 26 27 28)
}

/// Returns true if another program has grabbed the device, so that its events do not come here. None: the kernel refuses the
/// probe.
///
/// The kernel answers only an attempt, so the probe grabs the device and gives it back at once. Each of the two calls waits until
/// all processors have noticed (`synchronize_rcu`), which takes some milliseconds. Events of that time reach this program alone, so
/// the probe is for a device that is not in use.
#[allow(unsafe_code)]
pub fn is_grabbed(device: BorrowedFd<'_>) -> Option<bool> {
    // SAFETY: the request takes an integer: 1 grabs.
    let grab = unsafe { IntegerSetter::<GRAB>::new_usize(1) };
    // SAFETY: the request touches no memory, and a file that is no input device refuses it.
    match unsafe { ioctl(device, grab) } {
        Ok(()) => {}
        Err(Errno::BUSY) => return Some(true),
        Err(_) => return None,
    }
    // SAFETY: the request takes an integer: 0 gives back.
    let release = unsafe { IntegerSetter::<GRAB>::new_usize(0) };
    // SAFETY: as above.
    let _ = unsafe { ioctl(device, release) };
    Some(false)
}
