use super::path::HandOutCall;
use super::*;
use opentelemetry_sdk::trace::SpanData;
use pcfarm_proto::ids::JobId;

fn on(sampler: Sampler, queue: usize) -> (Traces, mpsc::Receiver<SpanData>) {
    let (sender, receiver) = mpsc::channel(queue);
    (Traces::with(sampler, sender), receiver)
}

fn by_parent(own: Sampler) -> Sampler {
    Sampler::ParentBased(Box::new(own))
}

fn caller(sampled: bool) -> Option<TraceParent> {
    let flags = if sampled { "01" } else { "00" };
    TraceParent::read(&format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}"))
}

#[test]
fn a_trace_goes_on_where_its_caller_says() {
    let (traces, mut queue) = on(by_parent(Sampler::AlwaysOff), 9);
    let call = traces.begin("call", SpanKind::Server, caller(true));
    let mut part = traces.under(call.place(), "part");
    part.set("pcfarm.problems", 7);
    drop((part, call));
    let (part, call) = (queue.try_recv().expect("the part"), queue.try_recv().expect("the call"));
    let theirs = caller(true).expect("one").place;
    assert_eq!((call.span_context.trace_id(), call.parent_span_id), (theirs.trace, theirs.span));
    assert!(call.parent_span_is_remote && !part.parent_span_is_remote);
    assert_eq!(part.parent_span_id, call.span_context.span_id());
    assert_eq!(part.span_context.trace_id(), theirs.trace);
    assert_eq!(part.attributes, [KeyValue::new("pcfarm.problems", 7)]);
}

#[test]
fn what_is_not_sampled_leaves_nothing() {
    for (sampler, caller) in [
        (by_parent(Sampler::AlwaysOn), caller(false)),
        (by_parent(Sampler::AlwaysOff), None),
        (Sampler::AlwaysOff, caller(true)),
    ] {
        let (traces, mut queue) = on(sampler.clone(), 9);
        let call = traces.begin("call", SpanKind::Server, caller);
        assert_eq!(call.place(), None, "{sampler:?}");
        drop(traces.under(call.place(), "part"));
        drop(call);
        assert!(queue.try_recv().is_err(), "{sampler:?}");
    }
    let off = Traces::default();
    assert!(off.begin("call", SpanKind::Server, caller(true)).place().is_none());
    assert_eq!(off.kept(Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")), None);
}

#[test]
fn a_row_says_where_it_belongs() {
    let (traces, _queue) = on(Sampler::AlwaysOff, 9);
    let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(traces.kept(Some(text)), caller(true).map(|caller| caller.place));
    assert_eq!(traces.kept(Some(&text.replace("-01", "-00"))), None, "not sampled");
    assert_eq!(traces.kept(None), None);
}

#[test]
fn a_full_queue_costs_spans_and_nothing_else() {
    let (traces, mut queue) = on(Sampler::AlwaysOn, 2);
    for name in ["one", "two", "three"] {
        drop(traces.begin(name, SpanKind::Server, None));
    }
    let names: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).map(|span| span.name).collect();
    assert_eq!(names, ["one", "two"]);
    drop(traces.begin("four", SpanKind::Server, None));
    assert_eq!(queue.try_recv().expect("there is room again").name, "four");
    drop(queue);
    drop(traces.begin("five", SpanKind::Server, None));
}

#[test]
fn a_span_ends_no_sooner_than_it_began() {
    let (traces, mut queue) = on(Sampler::AlwaysOn, 2);
    let began = SystemTime::now() + Duration::from_secs(60);
    traces.begin("ahead", SpanKind::Server, None).since(began).end_at(began - Duration::from_secs(1));
    let span = queue.try_recv().expect("a span");
    assert_eq!((span.start_time, span.end_time), (began, began));
}

#[test]
fn links_are_some_at_most() {
    let (traces, mut queue) = on(Sampler::AlwaysOn, 2);
    let mut span = traces.begin("many", SpanKind::Server, None);
    let place = span.place().expect("on");
    (0..100).for_each(|n| span.link(place.part("checkout", n)));
    drop(span);
    assert_eq!(queue.try_recv().expect("a span").links.len(), LINKS_LIMIT);
}

#[tokio::test]
async fn what_is_done_for_a_call_knows_it_and_tells_what_the_database_took() {
    let (traces, mut queue) = on(Sampler::AlwaysOn, 9);
    let mut call = traces.begin("call", SpanKind::Server, None);
    let place = call.place();
    let work = async {
        tokio::task::yield_now().await;
        note_statement("submit", Duration::from_millis(20));
        note_statement("submit", Duration::from_millis(30));
        current()
    };
    assert_eq!(within(&mut call, work).await, place);
    assert_eq!(current(), None);
    note_statement("submit", Duration::from_secs(9));
    assert_eq!(within(&mut Span::default(), async { current() }).await, None);
    drop(call);
    let span = queue.try_recv().expect("a span");
    assert_eq!(span.attributes, [KeyValue::new("pcfarm.database.submit.seconds", 0.05)]);
}

/// A transaction serves several, whose jobs may be in several traces.
#[test]
fn checkouts_that_share_a_call_link_to_each_other() {
    let (traces, mut queue) = on(Sampler::AlwaysOff, 9);
    let trace_parent = |n: u8| format!("00-{n:032x}-00f067aa0ba902b7-01");
    let of = |n: u8| traces.of_checkout(Some(&trace_parent(n)), JobId(n.into()), 7, SystemTime::now).expect("sampled");
    let both = [of(1), of(2)];
    let traced = both.iter().map(|trace| trace.checkout).collect();
    let call = HandOutCall { checkouts: 3, database: Duration::from_millis(2), traced };
    traces.handed_out(&both[0], 5, &call);
    let span = queue.try_recv().expect("a span");
    assert_eq!(span.parent_span_id, both[0].checkout.span);
    let links: Vec<_> =
        span.links.iter().map(|link| (link.span_context.trace_id(), link.span_context.span_id())).collect();
    assert_eq!(links, [(both[1].checkout.trace, both[1].checkout.span)]);
    assert_ne!(both[0].checkout.trace, both[1].checkout.trace);
}
