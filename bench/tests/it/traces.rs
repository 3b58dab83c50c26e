//! Traces of real servers and agents, in a collector: what somebody sees of a submission's path.

use crate::collector::{Collector, Seen};
use crate::receiver::{Receiver, SECRET};
use pcfarm_bench::farm::{Farm, LONG, SOON, Server, free_port};
use pcfarm_proto::ids::JobId;
use serde_json::{Value, json};
use std::collections::HashSet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What a caller is in the middle of.
pub const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

pub fn trace_parent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-{SPAN}-{flags}")
}

async fn farm() -> Farm {
    let farm = Farm::new().await;
    farm.job_type("plain", "digest", json!({})).await;
    farm
}

/// A server with REST, and its port, not started yet.
fn prepared(farm: &Farm, name: &str, traces: &str, environment: &[(&str, &str)]) -> (Server, u16) {
    let port = free_port();
    let Server { mut program, port: grpc } =
        farm.server(name, &["--traces", traces, "--http-listen", &format!("127.0.0.1:{port}")]);
    for (variable, value) in environment {
        program = program.environment(variable, value);
    }
    (Server { program, port: grpc }, port)
}

async fn serving(farm: &Farm, name: &str, traces: &str, environment: &[(&str, &str)]) -> (Server, u16) {
    let (mut server, port) = prepared(farm, name, traces, environment);
    server.start().await;
    (server, port)
}

/// What REST answers, which must be with this status.
async fn asked(port: u16, request: &str, headers: &str, body: &str, status: u16) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let length = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: farm\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(SOON, talk).await.expect("no answer").expect("an answer");
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// A job of problems that take so many milliseconds, submitted by REST in the trace that the caller says.
pub async fn submitted(port: u16, parent: &str, problems: usize, ms: u64) -> JobId {
    let problem = |n: usize| json!({"key": format!("k{n}"), "payload": {"n": n, "ms": ms}});
    let mut job = json!({"name": "traced", "job_type": "plain", "convoy": 1});
    job["problems"] = (0..problems).map(problem).collect();
    let key = format!("idempotency-key: {parent}-{problems}-{ms}");
    let headers = format!("content-type: application/json\r\ntraceparent: {parent}\r\n{key}\r\n");
    let answer = asked(port, "POST /api/v1/jobs", &headers, &job.to_string(), 201).await;
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["job_id"].as_str().expect("an id").parse().expect("an id")
}

fn named<'a>(spans: &'a [Seen], name: &str) -> Vec<&'a Seen> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn one<'a>(spans: &'a [Seen], name: &str) -> &'a Seen {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

fn problems_of(spans: &[&Seen]) -> usize {
    spans.iter().map(|span| span.attributes["pcfarm.problems"].parse::<usize>().expect("a number")).sum()
}

/// Every span's parent is there, or the caller.
fn hang_together(spans: &[Seen]) {
    let ids: HashSet<&str> = spans.iter().map(|span| span.id.as_str()).chain([SPAN, ""]).collect();
    for span in spans {
        assert!(ids.contains(span.parent.as_str()), "{} has no parent: {spans:#?}", span.name);
    }
}

#[tokio::test]
async fn a_submission_is_one_trace_from_its_call_to_its_results_and_whom_they_are_told() {
    let farm = farm().await;
    let collector = Collector::start().await;
    let mut receiver = Receiver::start(&[]).await;
    let (server, rest) = serving(&farm, "a", &collector.url, &[("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")]).await;
    let _agent = farm.working("one", &[&server]);
    let told = json!({"webhook": receiver.url, "secret": SECRET, "events": ["ended"]});
    farm.query("select pcfarm.subscribe($1::text::jsonb)", &[&told.to_string()]).await;
    let job = submitted(rest, &trace_parent(TRACE, "01"), 200, 1).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    let posted = receiver.next().await;
    let whole = |spans: &[Seen]| {
        problems_of(&named(spans, "checkout")) == 200
            && ["POST /api/v1/jobs", "job", "alert webhook"].iter().all(|name| !named(spans, name).is_empty())
    };
    let spans = collector.until_all("the whole trace", TRACE, whole).await;
    assert!(collector.was_shown("secret"), "the headers that were wanted");
    hang_together(&spans);
    let alert = one(&spans, "alert webhook");
    let call = one(&spans, "POST /api/v1/jobs");
    assert_eq!((call.parent.as_str(), call.attributes["http.response.status_code"].as_str()), (SPAN, "201"));
    assert!(call.attributes.contains_key("pcfarm.database.submit.seconds"), "{call:?}");
    let ended = one(&spans, "job");
    assert_eq!((&ended.parent, &ended.failure), (&call.id, &None));
    assert_eq!(ended.attributes["pcfarm.job.id"], job.to_string());
    let checkouts = named(&spans, "checkout");
    assert!(!checkouts.is_empty());
    for checkout in &checkouts {
        assert_eq!((&checkout.parent, &checkout.failure), (&ended.id, &None));
        let parts: Vec<Seen> = spans.iter().filter(|span| span.parent == checkout.id).cloned().collect();
        let (out, sent, solved) = (one(&parts, "hand out"), one(&parts, "send"), one(&parts, "solve"));
        assert_eq!(solved.attributes["pcfarm.problems"], checkout.attributes["pcfarm.problems"]);
        assert!(out.attributes.contains_key("pcfarm.database.check_out.seconds"));
        let stored = named(&parts, "store results");
        assert!(!stored.is_empty() && stored[0].attributes.contains_key("pcfarm.database.accept.seconds"));
        assert!(checkout.began <= out.began && out.began <= sent.began && sent.began <= solved.ended);
        assert!(solved.began < solved.ended && solved.ended <= checkout.ended, "{checkout:?} {solved:?}");
    }
    let beyond_deliveries = spans.len() - named(&spans, "store results").len();
    assert_eq!(beyond_deliveries, 3 + 4 * checkouts.len(), "nothing is made for a problem: {spans:#?}");
    assert_eq!(alert.parent, ended.id);
    assert_eq!(posted.trace_parent, format!("00-{TRACE}-{}-01", alert.id), "the receiver can go on from there");
}

#[tokio::test]
async fn an_upload_that_is_stored_first_is_loaded_in_its_trace() {
    let farm = farm().await;
    let collector = Collector::start().await;
    let (server, rest) = serving(&farm, "a", &collector.url, &[]).await;
    let _agent = farm.working("one", &[&server]);
    let headers =
        format!("content-type: text/csv\r\ntraceparent: {}\r\nidempotency-key: k\r\n", trace_parent(TRACE, "01"));
    let upload = "POST /api/v1/submissions?name=up&job_type=plain";
    let first = asked(rest, upload, &headers, "key,n,ms\na,1,1\nb,2,1\n", 201).await;
    let whole = |spans: &[Seen]| {
        problems_of(&named(spans, "checkout")) == 2
            && ["POST /api/v1/submissions", "load", "job"].iter().all(|name| !named(spans, name).is_empty())
    };
    let spans = collector.until_all("the whole trace", TRACE, whole).await;
    hang_together(&spans);
    let (call, load) = (one(&spans, "POST /api/v1/submissions"), one(&spans, "load"));
    assert_eq!((&load.parent, load.attributes["pcfarm.problems"].as_str()), (&call.id, "2"));
    assert_eq!(one(&spans, "job").parent, load.id);
    // The same once more, from another caller: another trace does not make it another upload.
    let other = headers.replace(TRACE, &TRACE.replace('4', "5"));
    let again = asked(rest, upload, &other, "key,n,ms\na,1,1\nb,2,1\n", 201).await;
    let id = |answer: &str| serde_json::from_str::<Value>(answer).expect("JSON")["submission_id"].clone();
    assert_eq!(id(&first), id(&again));
}

#[tokio::test]
async fn a_trigger_begins_a_trace_for_the_job_that_it_makes() {
    let farm = farm().await;
    let collector = Collector::start().await;
    let database: String = farm.query("select current_database()::text", &[]).await[0].get(0);
    let reader = format!("{database}_r");
    farm.run(&format!("create role {reader} login")).await;
    farm.job_type("nightly", "digest", json!({"read_role": reader})).await;
    let (mut server, _) = serving(&farm, "a", &collector.url, &[]).await;
    let _agent = farm.working("one", &[&server]);
    let load = json!({"query": "select 'a' as key, jsonb_build_object('n', 1, 'ms', 0) as payload"});
    let options = json!({"template": {"job_type": "nightly", "loads": [load]}}).to_string();
    farm.query("select pcfarm.create_schedule('nightly', 'every 1 s', $1::text::jsonb)", &[&options]).await;
    let job = collector.until("a schedule's job", |span| span.name == "job").await;
    let whole = |spans: &[Seen]| ["schedules", "load", "checkout"].iter().all(|name| !named(spans, name).is_empty());
    let spans = collector.until_all("its trace", &job.trace, whole).await;
    let tick = one(&spans, "schedules");
    assert_eq!((&tick.parent, &job.parent), (&String::new(), &tick.id));
    assert!(tick.attributes.contains_key("pcfarm.lateness.seconds"), "{tick:?}");
    assert!(named(&spans, "load").iter().all(|load| load.parent == job.id), "{spans:#?}");
    server.program.terminate();
    server.program.ended(SOON).await;
    farm.run(&format!("drop owned by {reader} cascade; drop role {reader}")).await;
}

#[tokio::test]
async fn what_is_not_sampled_leaves_nothing() {
    let farm = farm().await;
    let collector = Collector::start().await;
    let (server, rest) =
        serving(&farm, "a", &collector.url, &[("OTEL_TRACES_SAMPLER", "parentbased_always_off")]).await;
    let _agent = farm.working("one", &[&server]);
    let unseen = submitted(rest, &trace_parent(&TRACE.replace('4', "5"), "00"), 20, 1).await;
    let alone = submitted(rest, "none", 20, 1).await;
    for job in [unseen, alone] {
        assert_eq!(farm.ended(job, LONG).await, "done");
    }
    let seen = submitted(rest, &trace_parent(TRACE, "01"), 20, 1).await;
    // Spans go out in the order in which they end.
    collector.until("the job that is seen", |span| span.name == "job").await;
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
    let kept = "select count(trace_parent) from pcfarm.job where trace_parent is not null";
    assert_eq!(farm.number(kept).await, 1);
    assert_eq!(farm.number(&format!("select count(trace_parent) from pcfarm.job where job_id = {seen}")).await, 1);
}

#[tokio::test]
async fn a_collector_that_is_away_delays_nothing_and_is_found_again() {
    let farm = farm().await;
    let port = free_port();
    let environment =
        [("OTEL_BSP_MAX_QUEUE_SIZE", "8"), ("OTEL_BSP_SCHEDULE_DELAY", "50"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")];
    let (mut server, rest) = serving(&farm, "a", &format!("http://127.0.0.1:{port}"), &environment).await;
    let _agent = farm.working("one", &[&server]);
    for n in 0..10 {
        let trace = format!("{:032x}", n + 1);
        let job = submitted(rest, &trace_parent(&trace, "01"), 20, 1).await;
        assert_eq!(farm.ended(job, LONG).await, "done");
    }
    let lost = |metrics: &str, outcome: &str| {
        let name = format!("pcfarm_trace_spans_total{{outcome=\"{outcome}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)).is_some_and(|count| count != "0")
    };
    let metrics = asked(rest, "GET /metrics", "", "", 200).await;
    assert!(lost(&metrics, "not_sent") || lost(&metrics, "dropped"), "{metrics}");
    let collector = Collector::at(port).await;
    let found = async {
        loop {
            submitted(rest, &trace_parent(TRACE, "01"), 1, 1).await;
            if let Ok(span) = timeout(std::time::Duration::from_secs(2), collector.until("a span", |_| true)).await {
                return span;
            }
        }
    };
    timeout(LONG, found).await.expect("the collector is found again");
    drop(collector);
    server.program.terminate();
    assert!(server.program.ended(SOON).await.success(), "it waits for nobody when it stops");
}

#[tokio::test]
async fn what_a_server_has_begun_another_brings_to_its_end() {
    let farm = farm().await;
    let collector = Collector::start().await;
    let at_once = [("OTEL_BSP_SCHEDULE_DELAY", "5")];
    let (mut a, rest) = serving(&farm, "a", &collector.url, &at_once).await;
    let (mut b, _) = prepared(&farm, "b", &collector.url, &at_once);
    let _agent = farm.working("one", &[&a, &b]);
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation").await;
    b.start().await;
    // Longer than it takes to see the first of it and to kill its server.
    let job = submitted(rest, &trace_parent(TRACE, "01"), 8, 1500).await;
    collector.until("the call", |span| span.name == "POST /api/v1/jobs").await;
    let begun = collector.until("a hand-out", |span| span.name == "hand out").await;
    assert_eq!(begun.server, "a", "the other was not there when the agent came");
    a.program.kill();
    assert_eq!(farm.ended(job, LONG).await, "done");
    let ended = collector.until("the job", |span| span.name == "job").await;
    assert_eq!((ended.server.as_str(), ended.trace.as_str()), ("b", TRACE));
    let spans = collector.of(TRACE);
    let call = one(&spans, "POST /api/v1/jobs");
    assert_eq!((call.server.as_str(), &call.id), ("a", &ended.parent));
    // Of what it has in hand the agent tells the other server.
    let taken_over = collector.until("what the first server had handed out", |span| span.id == begun.parent).await;
    assert_eq!((taken_over.name.as_str(), &taken_over.parent), ("checkout", &ended.id));
    // What is sent last need not be what ended last.
    let problems = |spans: &[Seen]| problems_of(&named(spans, "checkout")) == 8;
    hang_together(&collector.until_all("every checkout", TRACE, problems).await);
    farm.check(&[job]).await;
}

#[tokio::test]
async fn the_cli_begins_a_trace_and_says_which() {
    let farm = farm().await;
    let collector = Collector::start().await;
    let (server, _) = serving(&farm, "a", &collector.url, &[]).await;
    let _agent = farm.working("one", &[&server]);
    let input = farm.path("problems.ndjson");
    std::fs::write(&input, "{\"key\": \"a\", \"payload\": {\"n\": 1, \"ms\": 1}}\n").expect("written");
    let url = server.url();
    let load = |name: &str| {
        let arguments = ["--server", &url, "--trace", "job", "load", "--name", name, "--type", "plain"];
        let program = farm.program(name, "pcfarm").without_environment("TRACEPARENT");
        program.arguments(arguments).arguments([input.as_os_str()])
    };
    let mut begins = load("begins");
    begins.start();
    assert!(begins.ended(SOON).await.success(), "{}", begins.log());
    let log = begins.log();
    let trace = log.lines().find_map(|line| line.strip_prefix("trace ")).unwrap_or_else(|| panic!("{log}")).to_owned();
    let call =
        collector.until("its call", |span| span.trace == trace && span.name.ends_with("JobService/Submit")).await;
    assert_eq!(call.attributes["rpc.grpc.status_code"], "0");
    let job = collector.until("its job", |span| span.trace == trace && span.name == "job").await;
    assert_eq!(job.parent, call.id);
    let mut goes_on = load("goes-on").environment("TRACEPARENT", trace_parent(TRACE, "01"));
    goes_on.start();
    let call = collector.until("another's call", |span| span.trace == TRACE && span.name.ends_with("/Submit")).await;
    assert_eq!(call.parent, SPAN);
}
