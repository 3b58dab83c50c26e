//! Requests to Linux: the range of an axis of an input device, whether a program keeps a device for itself (linux/input.h), and
//! the permanent address of a network card (linux/ethtool.h).

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Opcode, Updater, ioctl, opcode};

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

/// `SIOCETHTOOL` and `ETHTOOL_GPERMADDR`.
const ETHTOOL: Opcode = 0x8946;
const PERMANENT_ADDRESS: u32 = 0x20;

/// Longest address of a card, and longest name with its end.
const ADDRESS_BYTES: usize = 32;
const NAME_BYTES: usize = 16;

/// `struct ethtool_perm_addr` with room for the longest address.
#[repr(C)]
struct PermanentAddress {
    command: u32,
    size: u32,
    address: [u8; ADDRESS_BYTES],
}

/// `struct ifreq`. The kernel reads the name and the pointer; the rest has at least the size of its union.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    data: *mut PermanentAddress,
    rest: [u64; 2],
}

/// Permanent address of a network card, by any socket of the internet family. None: the card or its driver has none of six bytes.
#[allow(unsafe_code)]
pub fn permanent_address(socket: BorrowedFd<'_>, card: &str) -> Option<[u8; 6]> {
    let mut name = [0; NAME_BYTES];
    // The name ends with a zero.
    name[..NAME_BYTES - 1].get_mut(..card.len())?.copy_from_slice(card.as_bytes());
    let size = u32::try_from(ADDRESS_BYTES).ok()?;
    let mut answer = PermanentAddress { command: PERMANENT_ADDRESS, size, address: [0; ADDRESS_BYTES] };
    let mut request = InterfaceRequest { name, data: &raw mut answer, rest: [0; 2] };
    // SAFETY: the request reads and writes an `ifreq`, whose pointer is to a struct of the size that the struct names.
    let update = unsafe { Updater::<ETHTOOL, InterfaceRequest>::new(&mut request) };
    // SAFETY: both structs live until the call returns, and a file that is no socket refuses the request.
    unsafe { ioctl(socket, update) }.ok()?;
    (answer.size == 6).then(|| answer.address[..6].try_into().ok()).flatten()
}
