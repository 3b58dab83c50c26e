//! Traces of a server that was built without the feature `traces`: none are made. A setting that asks for them is refused, and
//! variables of OpenTelemetry are answered with a warning, for they may be meant for other programs.
//!
//! The interface is that of traces that are off; [`calls`], [`path`] and [`settings`] are the same.

#[path = "calls.rs"]
pub mod calls;
#[path = "path.rs"]
pub mod path;
#[path = "settings.rs"]
pub mod settings;

use crate::missing::TRACES;
use crate::outward::Outward;
use context::{Place, TraceParent};
use settings::Wanted;
use std::borrow::Cow;
use std::future::Future;
use std::time::{Duration, SystemTime};
use tracing::warn;

/// Source of spans, always off.
#[derive(Clone, Debug, Default)]
pub struct Traces(());

/// Empty span.
#[derive(Debug, Default)]
pub struct Span(());

/// Sender of spans; no value of it exists.
pub struct Sender(());

/// End of a call that a span describes.
#[derive(Clone, Copy, Debug)]
pub enum SpanKind {
    Client,
    Internal,
    Server,
}

impl Traces {
    /// `wanted` comes from variables alone: a setting was refused.
    pub fn start(wanted: Option<&Wanted>, _server: &str, _: &Outward) -> anyhow::Result<(Traces, Option<Sender>)> {
        if let Some(wanted) = wanted {
            warn!(collector = wanted.endpoint, "no traces are sent, although OTEL_* variables say where to: {TRACES}");
        }
        Ok((Traces::default(), None))
    }

    pub fn are_on(&self) -> bool {
        false
    }

    pub fn begin(&self, _name: impl Into<Cow<'static, str>>, _kind: SpanKind, _caller: Option<TraceParent>) -> Span {
        Span::default()
    }

    pub fn under(&self, _place: Option<Place>, _name: impl Into<Cow<'static, str>>) -> Span {
        Span::default()
    }

    pub fn kept(&self, _trace_parent: Option<&str>) -> Option<Place> {
        None
    }
}

impl Span {
    pub fn place(&self) -> Option<Place> {
        None
    }

    pub fn set<K, V>(&mut self, _key: K, _value: V) -> &mut Self {
        self
    }

    pub fn of_kind(self, _kind: SpanKind) -> Self {
        self
    }

    pub fn known_as(self, _place: Place) -> Self {
        self
    }

    pub fn since(self, _began: SystemTime) -> Self {
        self
    }

    pub fn link(&mut self, _to: Place) {}

    pub fn failed(&mut self, _why: impl Into<Cow<'static, str>>) {}

    pub fn end_at(self, _ended: SystemTime) {}
}

/// A span ends when it is dropped, also where nothing comes of it.
impl Drop for Span {
    fn drop(&mut self) {}
}

impl Sender {
    pub async fn finish(self) {}
}

pub async fn within<T>(_span: &mut Span, work: impl Future<Output = T>) -> T {
    work.await
}

pub fn carried<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    work
}

pub fn current() -> Option<Place> {
    None
}

pub fn note_statement(_statement: &'static str, _took: Duration) {}

/// Places in traces, of which there is none.
pub mod context {
    use std::fmt;

    pub const TRACE_PARENT: &str = "traceparent";

    /// No value exists: this server makes no spans.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Place(());

    /// No value exists: this server makes no spans.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TraceParent(());

    impl TraceParent {
        pub fn read(_text: &str) -> Option<TraceParent> {
            None
        }
    }

    impl Place {
        #[must_use]
        pub fn part(self, _what: &str, _id: u64) -> Place {
            self
        }
    }

    impl fmt::Display for Place {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Ok(())
        }
    }
}
