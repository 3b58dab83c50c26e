//! One input device that is watched.
//!
//! Owns which of its events count, and the probe for another program that has it for itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pcfarm_native::linux;
use rustix::fs::OFlags;

use super::description::Description;
use super::events::{EVENT_BYTES, Event, events};
use crate::presence::bump::Touch;
use crate::presence::noise::{Axis, Noise, tiny};
use crate::presence::signals::Moment;

const EVENTS_AT_ONCE: usize = 64;

/// Time without an event of any device before one is probed. For some milliseconds a probe keeps the events of its device from all
/// other programs, the console included: after a quiet minute no person types, and no key is down whose release could be lost.
pub const QUIET: Duration = Duration::from_secs(60);

/// Time between two probes of a device without events.
const PROBE_EVERY: Duration = Duration::from_secs(600);

/// Time that one read of noise covers at most.
const NOISE_SPAN: Duration = Duration::from_secs(10);

/// Events of one read.
#[derive(Default)]
pub struct Touches {
    /// Touches that count, with the age of each.
    pub counted: Vec<(Touch, Duration)>,
    /// Begin of the time in which the device moved without a person.
    pub noise_since: Option<Moment>,
}

pub struct Device {
    pub file: Arc<File>,
    /// Name in sysfs.
    pub named: String,
    /// A keyboard or a pointing device.
    is_of_work: bool,
    /// The owner ignores the device: only the times of its events matter.
    is_ignored: bool,
    noise: Noise,
    /// The tiny range of absolute axes.
    tiny: BTreeMap<u16, i64>,
    /// Last event, or the beginning.
    active: Moment,
    read: Moment,
    probed: Moment,
    is_grabbed: bool,
}

impl Device {
    pub fn open(path: &Path, described: &Description, is_ignored: bool, now: Moment) -> std::io::Result<Device> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        Ok(Device {
            file: Arc::new(file),
            named: described.name.clone(),
            is_of_work: described.is_of_work(),
            is_ignored,
            noise: Noise::default(),
            tiny: BTreeMap::new(),
            active: now,
            read: now,
            probed: now,
            is_grabbed: false,
        })
    }

    /// Returns true if events of the device may count.
    pub fn counts(&self) -> bool {
        !self.is_ignored
    }

    /// Returns true for a device that a person at work touches. Only beside one does silence prove absence.
    pub fn proves_absence(&self) -> bool {
        self.is_of_work && !self.is_ignored
    }

    /// Returns true for a device that moves by itself, as far as is known, or that the owner ignores.
    pub fn is_noisy(&self) -> bool {
        self.is_ignored || self.noise.is_noise()
    }

    /// Reads all events. None: the device is gone.
    pub fn read(&mut self, now: Moment) -> Option<Touches> {
        let mut buffer = [0; EVENT_BYTES * EVENTS_AT_ONCE];
        let mut touches = Touches::default();
        let before = std::mem::replace(&mut self.read, now).max(now.saturating_sub(NOISE_SPAN));
        loop {
            match (&*self.file).read(&mut buffer) {
                Ok(0) => return None,
                Ok(bytes) => {
                    self.active = now;
                    for (event, age) in events(&buffer[..bytes], SystemTime::now()) {
                        match self.judge(event, now) {
                            Some(touch) => touches.counted.push((touch, age)),
                            None => touches.noise_since = Some(before),
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(touches),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// None: it is noise.
    fn judge(&mut self, event: Event, now: Moment) -> Option<Touch> {
        if self.is_ignored {
            return None;
        }
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

    /// Asks the kernel whether another program has grabbed the device.
    pub fn probe(&mut self, now: Moment) {
        self.probed = now;
        self.is_grabbed = linux::is_grabbed(self.file.as_fd()).unwrap_or(false);
    }

    /// Times of the last event and of the last probe. A grab ends without an event, so a grabbed device is due again a minute after its
    /// probe.
    pub fn times(&self) -> (Moment, Moment) {
        (if self.is_grabbed { self.probed } else { self.active }, self.probed)
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

/// Chooses the device to probe next, and when, by the times of the last event and of the last probe of each: one at a time, the device
/// that was probed longest ago. A device is due once after its last event, and then every ten minutes.
pub fn next_probe(times: &[(Moment, Moment)]) -> Option<(Moment, usize)> {
    let quiet = times.iter().map(|(active, _)| *active).max()?.saturating_add(QUIET);
    let due = |active: Moment, probed: Moment| {
        if probed <= active { quiet } else { quiet.max(probed.saturating_add(PROBE_EVERY)) }
    };
    let all = times.iter().enumerate().map(|(place, (active, probed))| (due(*active, *probed), *probed, place));
    all.min().map(|(due, _, place)| (due, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_at_a_time_is_probed_after_a_quiet_minute() {
        let at = Duration::from_secs;
        /// Seconds of the last event and of the last probe.
        type Times = &'static [(u64, u64)];
        let cases: [(&str, u64, Times, Option<usize>); 7] = [
            ("none", 100, &[], None),
            ("just plugged in", 1059, &[(1000, 1000)], None),
            ("a quiet minute later", 1060, &[(1000, 1000)], Some(0)),
            ("another device is in use", 1060, &[(1000, 1000), (1050, 900)], None),
            ("the one probed longest ago", 1100, &[(1000, 990), (1000, 980), (1000, 1000)], Some(1)),
            ("probed since its last event", 1100, &[(1000, 1060)], None),
            ("ten minutes ago", 1660, &[(1000, 1060), (1000, 1061)], Some(0)),
        ];
        for (what, now, times, expected) in cases {
            let times: Vec<_> = times.iter().map(|(active, probed)| (at(*active), at(*probed))).collect();
            let due = next_probe(&times).filter(|(due, _)| *due <= at(now));
            assert_eq!(due.map(|(_, place)| place), expected, "{what}");
        }
    }
}
