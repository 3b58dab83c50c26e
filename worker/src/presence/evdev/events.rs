//! Events of input devices, as the kernel writes them (linux/input.h).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{ABS_OF_STICKS, EV_ABS, EV_KEY, EV_REL, EV_SW, REL_WHEELS};

/// Seconds, microseconds, type, code, value.
pub const EVENT_BYTES: usize = 2 * size_of::<usize>() + 8;

/// A stamp is believed if it is not older.
const STAMP_BELIEVED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key, a button, a wheel, a finger, a lid.
    Deliberate,
    /// Code and value of an axis.
    Relative(u16, i32),
    Absolute(u16, i32),
}

/// Events, and how long before `read` the kernel had each of them. Half an event, which the kernel never writes, counts.
pub fn events(bytes: &[u8], read: SystemTime) -> Vec<(Event, Duration)> {
    let parse = |bytes: &[u8]| {
        let Some(fields) = bytes.get(EVENT_BYTES - 8..).filter(|fields| fields.len() == 8) else {
            return Some(Event::Deliberate);
        };
        let kind = u16::from_ne_bytes([fields[0], fields[1]]);
        let code = u16::from_ne_bytes([fields[2], fields[3]]);
        let value = i32::from_ne_bytes([fields[4], fields[5], fields[6], fields[7]]);
        match kind {
            EV_REL if !REL_WHEELS.contains(&code) => Some(Event::Relative(code, value)),
            EV_ABS if code < ABS_OF_STICKS => Some(Event::Absolute(code, value)),
            EV_KEY | EV_REL | EV_ABS | EV_SW => Some(Event::Deliberate),
            // Marks between events, lamps and sounds.
            _ => None,
        }
    };
    bytes.chunks(EVENT_BYTES).filter_map(|event| Some((parse(event)?, age(event, read)))).collect()
}

/// By the kernel's stamp of the wall clock. A stamp of another time than just now is of no use: the clock was changed, or there is
/// none.
fn age(event: &[u8], read: SystemTime) -> Duration {
    const WORD: usize = size_of::<usize>();
    let word = |at: usize| {
        let bytes = event.get(at..at + WORD)?.try_into().ok()?;
        u64::try_from(usize::from_ne_bytes(bytes)).ok()
    };
    let stamp =
        || UNIX_EPOCH.checked_add(Duration::from_secs(word(0)?))?.checked_add(Duration::from_micros(word(WORD)?));
    let age = stamp().and_then(|stamp| read.duration_since(stamp).ok());
    age.filter(|age| *age <= STAMP_BELIEVED).unwrap_or_default()
}
