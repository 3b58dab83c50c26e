//! IOKit: since when nobody has touched anything, and what the Mac runs on.

use std::time::Duration;

use objc2_core_foundation::{CFDictionary, CFNumber, CFString, Type};
use objc2_io_kit::{
    IOObjectRelease, IOPSCopyPowerSourcesInfo, IOPSGetProvidingPowerSourceType, IORegistryEntryCreateCFProperty,
    IOServiceGetMatchingService, IOServiceMatching,
};

/// Says to IOKit: the port that everybody uses.
const DEFAULT_PORT: u32 = 0;

/// Since somebody touched keyboard, mouse or trackpad, on any seat, by the class that collects their events (`ioreg -c IOHIDSystem`).
/// It needs neither a session nor rights.
#[allow(unsafe_code)]
pub fn idle() -> Result<Duration, String> {
    // SAFETY: the name is a C string that lives for ever.
    let matching = unsafe { IOServiceMatching(c"IOHIDSystem".as_ptr()) };
    let matching = matching.ok_or("IOKit makes no question for IOHIDSystem")?;
    let matching: &CFDictionary = &matching;
    // SAFETY: a port, and a dictionary that IOKit made for this very call, which takes one reference to it.
    let service = unsafe { IOServiceGetMatchingService(DEFAULT_PORT, Some(matching.retain())) };
    if service == 0 {
        return Err("this system has no IOHIDSystem".to_owned());
    }
    let key = CFString::from_static_str("HIDIdleTime");
    // SAFETY: the service is one, and ours until it is released below; the key is a string; no allocator is the usual one.
    let property = unsafe { IORegistryEntryCreateCFProperty(service, Some(&key), None, 0) };
    IOObjectRelease(service);
    let property = property.ok_or("IOHIDSystem has no HIDIdleTime")?;
    let nanoseconds = property.downcast_ref::<CFNumber>().and_then(CFNumber::as_i64);
    let nanoseconds = nanoseconds.and_then(|nanoseconds| u64::try_from(nanoseconds).ok());
    nanoseconds.map(Duration::from_nanos).ok_or_else(|| "HIDIdleTime is no time".to_owned())
}

/// Whether it runs on a battery, its own or that of a UPS.
#[allow(unsafe_code)]
pub fn is_on_battery() -> Result<bool, String> {
    let sources = IOPSCopyPowerSourcesInfo().ok_or("IOKit tells of no sources of power")?;
    // SAFETY: what the call above has given is what this one takes.
    let source = unsafe { IOPSGetProvidingPowerSourceType(Some(&sources)) };
    match source.ok_or("IOKit does not name the source of power")?.to_string().as_str() {
        "AC Power" => Ok(false),
        "Battery Power" | "UPS Power" => Ok(true),
        other => Err(format!("the source of power is {other:?}")),
    }
}
