//! Where something belongs in a trace, as W3C's Trace Context writes it, and the ids of what several servers may have to
//! name alike. Pure.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use sha2::{Digest, Sha256};
use std::fmt;

/// The header, and the name in a call's metadata.
pub const TRACE_PARENT: &str = "traceparent";

/// A place in a trace that somebody wants to see. What is not sampled has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub trace: TraceId,
    pub span: SpanId,
}

/// What a `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub place: Place,
    /// Whoever sent it wants to see it.
    pub sampled: bool,
}

impl TraceParent {
    /// None: it is not one, and counts as if it were not there. Later versions may say more behind what this one says.
    pub fn read(text: &str) -> Option<TraceParent> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str, digits: usize| {
            part.len() == digits && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        if !(is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2)) {
            return None;
        }
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let place = Place { trace: TraceId::from_hex(trace).ok()?, span: SpanId::from_hex(span).ok()? };
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        place.is_somewhere().then_some(TraceParent { place, sampled })
    }
}

impl Place {
    fn is_somewhere(self) -> bool {
        self.trace != TraceId::INVALID && self.span != SpanId::INVALID
    }

    /// A part of the same trace whose id follows from what it is: any server gives it the same, whatever has crashed.
    pub fn part(self, what: &str, id: u64) -> Place {
        let mut hash = Sha256::new();
        hash.update(self.trace.to_bytes());
        hash.update(what.as_bytes());
        hash.update(id.to_be_bytes());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hash.finalize()[..8]);
        Place { trace: self.trace, span: SpanId::from_bytes(bytes) }
    }

    pub(super) fn context(self, sampled: bool, remote: bool) -> SpanContext {
        let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        SpanContext::new(self.trace, self.span, flags, remote, TraceState::NONE)
    }
}

/// As it is written in a header, sampled.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-01", self.trace, self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn what_others_write_is_read() {
        let read = TraceParent::read(&format!("00-{TRACE}-{SPAN}-01")).expect("the standard's own example");
        assert!(read.sampled);
        assert_eq!(read.place.to_string(), format!("00-{TRACE}-{SPAN}-01"));
        let unsampled = TraceParent::read(&format!("00-{TRACE}-{SPAN}-02")).expect("a later flag");
        assert!(!unsampled.sampled);
        assert!(TraceParent::read(&format!("01-{TRACE}-{SPAN}-01-more")).is_some(), "a later version");
    }

    #[test]
    fn what_is_not_one_counts_as_absent() {
        let nowhere = "0".repeat(32);
        for wrong in [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{nowhere}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &nowhere[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-{TRACE}-{SPAN}"),
        ] {
            assert_eq!(TraceParent::read(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn parts_are_told_apart_and_known_again() {
        let place = TraceParent::read(&format!("00-{TRACE}-{SPAN}-01")).expect("one").place;
        assert_eq!(place.part("job", 7), place.part("job", 7));
        assert_ne!(place.part("job", 7), place.part("job", 8));
        assert_ne!(place.part("job", 7), place.part("checkout", 7));
        assert_eq!(place.part("job", 7).trace, place.trace);
    }

    mod fuzz {
        use super::*;

        /// What is read can be written, and is read as the same.
        #[test]
        fn a_trace_parent() {
            bolero::check!().for_each(|bytes: &[u8]| {
                let Some(read) = std::str::from_utf8(bytes).ok().and_then(TraceParent::read) else { return };
                let again = TraceParent::read(&read.place.to_string()).expect("what was written");
                assert_eq!(again.place, read.place);
            });
        }
    }
}
