//! Traces: what became of a submission, from the call that brought it to its results, as spans for whoever collects them by
//! OpenTelemetry. Off unless somebody says where to send them; then nothing is made, kept or sent.
//!
//! A span is made per call, submission, hand-out of a checkout and delivery of results, never per problem. Servers make those of
//! agents, too, of what agents report: a workstation seldom reaches a collector. Where a job belongs is kept in its row
//! (`trace_parent`), and the ids of a job's and a checkout's span follow from what they are ([`context::Place::part`]): so
//! whichever server comes to the end of one makes the span that the others' are under.
//!
//! - calls, with which it begins: [`calls`]; where something belongs: [`context`]; what is wanted: [`settings`]; how spans leave: [`sending`]
//! - spans of what passes through several hands: [`path`]

pub mod calls;
pub mod context;
pub mod path;
pub mod sending;
pub mod settings;

use crate::outward::Outward;
use context::{Place, TraceParent};
pub use opentelemetry::trace::SpanKind;
use opentelemetry::trace::{Link, SpanId, Status, TraceContextExt, TraceId};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample, SpanData, SpanEvents, SpanLinks,
};
use sending::{LAST_LIMIT, Sending};
use settings::{Wanted, Which};
use std::borrow::Cow;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Makes spans, or nothing at all.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Tracer>>);

#[derive(Debug)]
struct Tracer {
    sampler: Sampler,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    queue: mpsc::Sender<SpanData>,
}

/// Something that takes its time, until it is dropped; or nothing, if it is not traced.
#[derive(Debug, Default)]
pub struct Span(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    tracer: Arc<Tracer>,
    /// Taken when it ends.
    data: Option<SpanData>,
    /// When it ended, if that was not when it is dropped.
    ended: Option<SystemTime>,
}

/// The task that sends spans, for whoever started it to wait for.
pub struct Sender {
    task: JoinSet<()>,
    last: CancellationToken,
}

impl Traces {
    /// `server`: what the collector knows this one by.
    pub fn start(wanted: Option<&Wanted>, server: &str, outward: &Outward) -> anyhow::Result<(Traces, Option<Sender>)> {
        let Some(wanted) = wanted else { return Ok((Traces::default(), None)) };
        let (sender, receiver) = mpsc::channel(wanted.queue);
        let last = CancellationToken::new();
        let mut task = JoinSet::new();
        // Should it panic, spans are dropped and counted, and all else goes on.
        task.spawn(Sending::new(wanted, (server, outward), receiver, last.clone())?.run());
        let traces = Traces::with(sampler(wanted.sampler), sender);
        Ok((traces, Some(Sender { task, last })))
    }

    fn with(sampler: Sampler, queue: mpsc::Sender<SpanData>) -> Traces {
        let scope = InstrumentationScope::builder("pcfarm").with_version(env!("CARGO_PKG_VERSION")).build();
        Traces(Some(Arc::new(Tracer { sampler, ids: RandomIdGenerator::default(), scope, queue })))
    }

    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// What begins here, or goes on with what the caller says: the sampler decides whether it is seen.
    pub fn begin(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind, caller: Option<TraceParent>) -> Span {
        let Some(tracer) = &self.0 else { return Span::default() };
        let name = name.into();
        let trace = caller.map_or_else(|| tracer.ids.new_trace_id(), |caller| caller.place.trace);
        let context =
            caller.map(|caller| Context::new().with_remote_span_context(caller.place.context(caller.sampled, true)));
        let sampled = tracer.sampler.should_sample(context.as_ref(), trace, &name, &kind, &[], &[]);
        if sampled.decision != SamplingDecision::RecordAndSample {
            return Span::default();
        }
        let parent = caller.map_or(SpanId::INVALID, |caller| caller.place.span);
        tracer.open(name, kind, trace, parent, caller.is_some())
    }

    /// A part of what is seen, or nothing.
    pub fn under(&self, place: Option<Place>, name: impl Into<Cow<'static, str>>) -> Span {
        let (Some(tracer), Some(place)) = (&self.0, place) else { return Span::default() };
        tracer.open(name.into(), SpanKind::Internal, place.trace, place.span, false)
    }

    /// Where a row says that it belongs. The decision to see it was made when it was written.
    pub fn kept(&self, trace_parent: Option<&str>) -> Option<Place> {
        self.0.as_ref()?;
        let parent = TraceParent::read(trace_parent?)?;
        parent.sampled.then_some(parent.place)
    }
}

fn sampler(which: Which) -> Sampler {
    let own = match which.share {
        share if share >= 1.0 => Sampler::AlwaysOn,
        share if share <= 0.0 => Sampler::AlwaysOff,
        share => Sampler::TraceIdRatioBased(share),
    };
    if which.by_parent { Sampler::ParentBased(Box::new(own)) } else { own }
}

impl Tracer {
    fn open(
        self: &Arc<Self>,
        name: Cow<'static, str>,
        kind: SpanKind,
        trace: TraceId,
        parent: SpanId,
        remote: bool,
    ) -> Span {
        let place = Place { trace, span: self.ids.new_span_id() };
        let now = SystemTime::now();
        let data = SpanData {
            span_context: place.context(true, false),
            parent_span_id: parent,
            parent_span_is_remote: remote,
            span_kind: kind,
            name,
            start_time: now,
            end_time: now,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        };
        Span(Some(Box::new(Open { tracer: self.clone(), data: Some(data), ended: None })))
    }
}

/// Others that shared something with it, at most: what is linked is looked at by people.
pub const LINKS_LIMIT: usize = 16;

impl Span {
    fn data(&mut self) -> Option<&mut SpanData> {
        self.0.as_mut()?.data.as_mut()
    }

    /// Where its parts belong.
    pub fn place(&self) -> Option<Place> {
        let context = &self.0.as_ref()?.data.as_ref()?.span_context;
        Some(Place { trace: context.trace_id(), span: context.span_id() })
    }

    pub fn set(&mut self, key: impl Into<opentelemetry::Key>, value: impl Into<Value>) -> &mut Self {
        if let Some(data) = self.data() {
            data.attributes.push(KeyValue::new(key, value));
        }
        self
    }

    pub fn of_kind(mut self, kind: SpanKind) -> Self {
        if let Some(data) = self.data() {
            data.span_kind = kind;
        }
        self
    }

    /// Its id is one that others know without having been told.
    pub fn known_as(mut self, place: Place) -> Self {
        if let Some(data) = self.data() {
            data.span_context = place.context(true, false);
        }
        self
    }

    /// It has been going on since then.
    pub fn since(mut self, began: SystemTime) -> Self {
        if let Some(data) = self.data() {
            data.start_time = began;
        }
        self
    }

    pub fn link(&mut self, to: Place) {
        if let Some(data) = self.data()
            && data.links.links.len() < LINKS_LIMIT
        {
            data.links.links.push(Link::with_context(to.context(true, true)));
        }
    }

    pub fn failed(&mut self, why: impl Into<Cow<'static, str>>) {
        if let Some(data) = self.data() {
            data.status = Status::error(why);
        }
    }

    /// It was over then.
    pub fn end_at(mut self, ended: SystemTime) {
        if let Some(open) = &mut self.0 {
            open.ended = Some(ended);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(mut data) = self.data.take() else { return };
        // Clocks of several machines and of the database are in it: a span never ends before it begins.
        data.end_time = self.ended.unwrap_or_else(SystemTime::now).max(data.start_time);
        if self.tracer.queue.try_send(data).is_err() {
            sending::count("dropped", 1);
        }
    }
}

impl Sender {
    /// Whoever makes spans has ended: the last of them go out, if the collector is there.
    pub async fn finish(mut self) {
        self.last.cancel();
        if tokio::time::timeout(LAST_LIMIT, self.task.join_next()).await.is_err() {
            warn!("the last spans were not taken by the collector of traces in time");
        }
    }
}

/// What is being done for somebody, and what the database took for it.
struct Doing {
    place: Place,
    statements: Mutex<Vec<(&'static str, Duration)>>,
}

tokio::task_local! {
    static DOING: Arc<Doing>;
}

/// Does it as a part of the span: what is begun meanwhile can be put under it ([`current`]), and it tells how long the database
/// took for it.
pub async fn within<T>(span: &mut Span, work: impl Future<Output = T>) -> T {
    let Some(place) = span.place() else { return work.await };
    let doing = Arc::new(Doing { place, statements: Mutex::default() });
    let outcome = DOING.scope(doing.clone(), work).await;
    for (statement, took) in doing.statements.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        span.set(format!("pcfarm.database.{statement}.seconds"), took.as_secs_f64());
    }
    outcome
}

/// The same in a task of its own: that knows by itself nothing of what began it.
pub fn carried<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let doing = DOING.try_with(Clone::clone).ok();
    async move {
        match doing {
            Some(doing) => DOING.scope(doing, work).await,
            None => work.await,
        }
    }
}

/// Where what is done now belongs, if anybody wants to see it.
pub fn current() -> Option<Place> {
    DOING.try_with(|doing| doing.place).ok()
}

/// A statement has come back.
pub fn note_statement(statement: &'static str, took: Duration) {
    let _ = DOING.try_with(|doing| {
        let mut statements = doing.statements.lock().unwrap_or_else(PoisonError::into_inner);
        match statements.iter_mut().find(|(known, _)| *known == statement) {
            Some((_, total)) => *total += took,
            None => statements.push((statement, took)),
        }
    });
}

#[cfg(test)]
mod tests;
