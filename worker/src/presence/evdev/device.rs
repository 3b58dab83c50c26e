//! One input device that is watched.
//!
//! Owns which of its events count, and the probe for another program that has it for itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pcfarm_native::linux;
use rustix::fs::OFlags;

use super::events::{EVENT_BYTES, Event, events};
use crate::presence::bump::Touch;
use crate::presence::noise::{Axis, Noise, tiny};
use crate::presence::signals::Moment;

const EVENTS_AT_ONCE: usize = 64;

/// Quiet time before a device is probed, and the time between probes. A probe keeps the events of a few microseconds from other
/// programs. After a quiet minute no key is down whose release could be lost.
const QUIET: Duration = Duration::from_secs(60);

pub struct Device {
    pub file: File,
    /// Name in sysfs.
    pub named: String,
    noise: Noise,
    /// The tiny range of absolute axes.
    tiny: BTreeMap<u16, i64>,
    /// Its last event, or its beginning.
    active: Moment,
    probed: Moment,
    is_grabbed: bool,
}

impl Device {
    pub fn open(path: &Path, named: String, now: Moment) -> std::io::Result<Device> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        Ok(Device {
            file,
            named,
            noise: Noise::default(),
            tiny: BTreeMap::new(),
            active: now,
            probed: now,
            is_grabbed: false,
        })
    }

    /// Touches that count, with the age of each. None: the device is gone.
    pub fn read(&mut self, now: Moment) -> Option<Vec<(Touch, Duration)>> {
        let mut buffer = [0; EVENT_BYTES * EVENTS_AT_ONCE];
        let mut touches = Vec::new();
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return None,
                Ok(bytes) => {
                    self.active = now;
                    let events = events(&buffer[..bytes], SystemTime::now());
                    touches.extend(events.into_iter().filter_map(|(event, age)| Some((self.judge(event, now)?, age))));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(touches),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// None: it is noise.
    fn judge(&mut self, event: Event, now: Moment) -> Option<Touch> {
        match event {
            Event::Deliberate => {
                self.noise.is_used();
                Some(Touch::Deliberate)
            }
            Event::Relative(code, value) => {
                let is_noise = self.noise.moved(Axis::Relative(code), value, 0, now);
                (!is_noise).then(|| Touch::Movement(value.unsigned_abs()))
            }
            Event::Absolute(code, value) => {
                let Device { file, tiny: known, noise, .. } = self;
                let range = || tiny(linux::axis_range(file.as_fd(), code));
                let tiny = *known.entry(code).or_insert_with(range);
                let is_noise = noise.moved(Axis::Absolute(code), value, tiny, now);
                (!is_noise).then_some(Touch::Deliberate)
            }
        }
    }

    /// Looks whether another program has grabbed it, if it is quiet and that is due.
    pub fn probe(&mut self, now: Moment) {
        let is_due = is_due(now, self.active, self.probed);
        if is_due {
            self.probed = now;
            self.is_grabbed = linux::is_grabbed(self.file.as_fd()).unwrap_or(false);
        }
    }

    pub fn is_grabbed(&self) -> bool {
        self.is_grabbed
    }

    /// For people, if there is something to tell.
    pub fn note(&self, event: &str) -> Option<String> {
        let named = &self.named;
        if self.is_grabbed {
            return Some(format!(
                "another program has grabbed input device \"{named}\" ({event}), so its input is not seen; to work \
                 all the same: ignore_devices = [\"{named}\"] in [presence]"
            ));
        }
        self.noise.is_noise().then(|| {
            format!("input device \"{named}\" ({event}) moves by itself; its tiny movements do not count as activity")
        })
    }
}

fn is_due(now: Moment, active: Moment, probed: Moment) -> bool {
    now.saturating_sub(active) >= QUIET && now.saturating_sub(probed) >= QUIET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_probed_only_after_a_quiet_minute() {
        let at = Duration::from_secs;
        for (now, active, probed, expected) in
            [(100, 0, 0, true), (100, 41, 0, false), (100, 0, 41, false), (59, 0, 0, false), (10, 90, 90, false)]
        {
            assert_eq!(is_due(at(now), at(active), at(probed)), expected, "{now} {active} {probed}");
        }
    }
}
