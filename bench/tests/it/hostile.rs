//! Peers that are slow, silent, flooding, malformed or too many: agents that behave are served as ever, and what the others
//! took is free again soon.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::light::{Herd, Nothing, Pace};
use pcfarm_bench::report::quantile;
use pcfarm_bench::usage;
use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::{MESSAGE_BYTES_LIMIT, PROTOCOL_VERSION};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::codegen::http::{Request, header::HeaderValue};
use uuid::Uuid;

const HERD: usize = 40;

/// Agents that behave wait no longer than this for work.
const WAIT_P99_MS: f64 = 1000.0;

/// What those who do not may cost in memory while they are there.
const MEMORY_BYTES: u64 = 300 << 20;

/// Sockets of peers that are of no use are closed by then.
const FREED: Duration = Duration::from_secs(60);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A farm at work, and somebody who disturbs it.
struct Site {
    farm: Farm,
    server: Server,
    herd: Herd,
}

impl Site {
    async fn start(flags: &[&str]) -> Site {
        let farm = Farm::new().await;
        farm.job_type("noop", "echo", json!({})).await;
        let server = farm.serving("a", &[&["--lease", "15", "--checkout-problems", "4"], flags].concat()).await;
        let herd = Herd::start(&[server.url()], HERD, Arc::new(Nothing));
        herd.connected(HERD, LONG).await.expect("a herd");
        let hold = Duration::from_millis(100);
        farm.submit("noop", "select i::text as key, to_jsonb(i) as payload from generate_series(1, 60000) i", 1).await;
        herd.pace(Pace { draw: true, spread: hold, hold });
        while herd.book.accepted() < 200 {
            sleep(Duration::from_millis(10)).await;
        }
        drop(herd.book.waits_ms());
        Site { farm, server, herd }
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.server.port).into()
    }

    fn pid(&self) -> u32 {
        self.server.program.pid().expect("it runs")
    }

    fn memory(&self) -> u64 {
        usage::of(self.pid()).memory_bytes
    }

    fn sockets(&self) -> usize {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs");
        let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    }

    /// Those who behave are served as ever.
    async fn is_served(&mut self) {
        let before = self.herd.book.accepted();
        let deadline = Instant::now() + SOON;
        while self.herd.book.accepted() < before + 1000 {
            assert!(Instant::now() < deadline, "hardly anybody is served: {}", self.server.program.log());
            sleep(Duration::from_millis(10)).await;
        }
        let waits = self.herd.book.waits_ms();
        let p99 = quantile(&waits, 0.99).expect("they have waited");
        assert!(p99 < WAIT_P99_MS, "a wait of {p99} ms");
        assert_eq!(self.herd.book.refused(), 0);
        assert!(self.server.program.runs());
    }

    /// Sockets are as many as before the trouble.
    async fn is_freed(&self, sockets: usize) {
        let deadline = Instant::now() + FREED;
        // The database's connections come and go.
        while self.sockets() > sockets + 10 {
            assert!(Instant::now() < deadline, "{} sockets, {sockets} before", self.sockets());
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// As many descriptors as the machine allows, for this process and those that it starts.
fn raise_descriptors() {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before }).expect("up to the hard limit");
}

async fn connections(address: SocketAddr, count: usize, first: &[u8]) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
        if stream.write_all(first).await.is_ok() {
            all.push(stream);
        }
    }
    all
}

#[tokio::test]
#[ignore = "nightly: waits for deadlines of thousands of connections"]
async fn thousands_who_connect_and_say_nothing_or_nonsense_or_little_at_a_time() {
    raise_descriptors();
    let mut site = Site::start(&["--connections-per-address", "5000"]).await;
    let (sockets, memory) = (site.sockets(), site.memory());
    let silent = connections(site.address(), 1000, b"").await;
    let begun = connections(site.address(), 1000, PREFACE).await;
    let half = connections(site.address(), 500, &PREFACE[..10]).await;
    let nonsense = connections(site.address(), 500, &[0xff; 4096]).await;
    assert!(silent.len() + begun.len() + half.len() > 2_000, "this machine allows too few descriptors");
    let mut slow = JoinSet::new();
    for mut stream in connections(site.address(), 100, b"").await {
        slow.spawn(async move {
            // Headers that never end.
            for byte in PREFACE.iter().chain([0, 0xff, 0xff, 1, 0, 0, 0, 0, 1].iter().cycle()) {
                if stream.write_all(&[*byte]).await.is_err() {
                    return;
                }
                sleep(Duration::from_millis(200)).await;
            }
        });
    }
    site.is_served().await;
    assert!(site.memory() < memory + MEMORY_BYTES);
    site.is_freed(sockets).await;
    site.is_served().await;
    drop((silent, begun, half, nonsense, slow));
}

#[tokio::test]
async fn more_than_may_be_connected_are_turned_away_and_nobody_else() {
    let mut site = Site::start(&["--connections", "100", "--connections-per-address", "60"]).await;
    let crowd = connections(site.address(), 500, PREFACE).await;
    site.is_served().await;
    assert!(site.sockets() < 150, "{} sockets", site.sockets());
    assert!(site.server.program.log().contains("too many connections"));
    drop(crowd);
    // There is room again for those who come later.
    site.server.ready().await;
}

#[tokio::test]
async fn a_server_that_runs_out_of_descriptors_goes_on() {
    let mut site = Site::start(&["--connections", "400", "--connections-per-address", "400"]).await;
    sleep(Duration::from_secs(2)).await; // its connections to the database are made
    let pid = site.pid();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count() as u64 + 20;
    let pid = rustix::process::Pid::from_raw(pid.cast_signed());
    let limit = Rlimit { current: Some(open), maximum: Some(open) };
    prlimit(pid, Resource::Nofile, limit).expect("the limit can be lowered");
    let crowd = connections(site.address(), 200, PREFACE).await;
    site.is_served().await;
    site.server.program.says("no connection can be accepted", SOON).await;
    drop(crowd);
    site.server.ready().await;
    site.is_served().await;
}

/// One call with a body made by hand. The status that it is answered with, or none if the connection is ended instead.
async fn call(address: SocketAddr, method: &'static str, body: Bytes, encoding: &'static str) -> Option<Code> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut client, connection) = h2::client::handshake(stream).await.ok()?;
    let mut task = JoinSet::new();
    task.spawn(connection);
    let request = Request::post(format!("http://{address}{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-encoding", HeaderValue::from_static(encoding))
        .body(())
        .expect("a good request");
    let (answer, mut sender) = client.send_request(request, false).ok()?;
    sender.send_data(body, true).ok()?;
    let answer = timeout(SOON, answer).await.expect("an answer").ok()?;
    let status = match answer.headers().get("grpc-status") {
        Some(status) => status.clone(),
        None => {
            let mut body = answer.into_body();
            while body.data().await.is_some() {}
            body.trailers().await.ok()??.get("grpc-status")?.clone()
        }
    };
    Some(Code::from_bytes(status.as_bytes()))
}

fn frame(compressed: bool, length: u32, bytes: &[u8]) -> Bytes {
    [&[u8::from(compressed)][..], &length.to_be_bytes(), bytes].concat().into()
}

const SUBMIT: &str = "/pcfarm.v1.JobService/Submit";
const WORK: &str = "/pcfarm.v1.AgentService/Work";
const GET_JOB: &str = "/pcfarm.v1.JobService/GetJob";

#[tokio::test]
async fn messages_that_are_none_are_refused_and_cost_nothing() {
    let mut site = Site::start(&["--connections-per-address", "2000"]).await;
    let (sockets, memory, address) = (site.sockets(), site.memory(), site.address());
    let garbage = vec![0xff; 2000];
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut bomb, &vec![0; 64 << 20]).expect("memory");
    let bomb = bomb.finish().expect("memory");
    for method in [SUBMIT, WORK, GET_JOB] {
        let malformed = call(address, method, frame(false, 2000, &garbage), "identity").await;
        assert!(matches!(malformed, Some(Code::Internal | Code::InvalidArgument)), "{method}: {malformed:?}");
        let cut = call(address, method, frame(false, 5000, &garbage), "identity").await;
        assert!(cut.is_some_and(|code| code != Code::Ok), "{method}: {cut:?}");
        let compressed = call(address, method, frame(true, bomb.len() as u32, &bomb), "gzip").await;
        assert!(compressed.is_some_and(|code| code != Code::Ok), "{method}: {compressed:?}");
        let huge = call(address, method, frame(false, u32::MAX, &garbage), "identity").await;
        assert!(huge.is_some_and(|code| code != Code::Ok), "{method}: {huge:?}");
    }
    // Too large, and by a client that means well.
    let mut client = JobServiceClient::connect(site.server.url()).await.expect("it answers");
    let problem =
        v1::SubmitProblem { key: "k".into(), payload: vec![b' '; MESSAGE_BYTES_LIMIT].into(), ..Default::default() };
    let large = Part::Problems(v1::SubmitProblems { problems: vec![problem] });
    let refused = client.submit(tokio_stream::iter([v1::SubmitRequest { part: Some(large) }])).await;
    assert_eq!(refused.expect_err("it is too large").code(), Code::OutOfRange);
    site.is_served().await;
    assert!(site.memory() < memory + MEMORY_BYTES);
    drop(client);
    site.is_freed(sockets).await;
}

fn hello() -> v1::AgentMessage {
    let hello = v1::Hello {
        protocol_version: PROTOCOL_VERSION,
        identity: Uuid::new_v4().to_string(),
        instance: Uuid::new_v4().to_string(),
        hostname: "hostile".to_owned(),
        cores: 1,
        controllers: vec!["echo".to_owned()],
        ..v1::Hello::default()
    };
    v1::AgentMessage { message: Some(Out::Hello(hello)) }
}

#[tokio::test]
async fn agents_that_flood_or_never_read() {
    let mut site = Site::start(&["--connections-per-address", "2000"]).await;
    let memory = site.memory();
    let mut tasks = JoinSet::new();
    for n in 0..10_usize {
        let url = site.server.url();
        tasks.spawn(async move {
            let mut client = AgentServiceClient::connect(url).await.expect("it answers");
            let (out, requests) = mpsc::channel(16);
            out.send(hello()).await.expect("room");
            let incoming = client.work(ReceiverStream::new(requests)).await.expect("a stream").into_inner();
            // Of what is sent to it, it reads nothing; it asks, and delivers what it does not hold.
            let says = |number: usize| match (n + number) % 3 {
                0 => Out::Heartbeat(v1::Heartbeat { held: Vec::new(), last_sequence: u64::MAX }),
                1 => Out::Credit(v1::Credit { checkouts: u32::MAX }),
                _ => Out::Delivery(v1::Delivery {
                    delivery_id: number as u64,
                    checkouts: (0..50)
                        .map(|id| v1::CheckoutResults {
                            checkout_id: id,
                            token: 4711,
                            finished: true,
                            ..Default::default()
                        })
                        .collect(),
                }),
            };
            for number in 0.. {
                let message = v1::AgentMessage { message: Some(says(number)) };
                if !matches!(timeout(Duration::from_secs(2), out.send(message)).await, Ok(Ok(()))) {
                    break;
                }
            }
            drop(incoming);
        });
    }
    site.is_served().await;
    assert!(site.memory() < memory + MEMORY_BYTES, "{} MiB more", (site.memory() - memory) >> 20);
    tasks.shutdown().await;
    site.is_served().await;
    drop(site.farm);
}

/// Large payloads, which they ask for by the hundred.
#[tokio::test]
#[ignore = "nightly: waits until a silent reader is disconnected"]
async fn agents_that_read_nothing_leave_room_for_those_that_do() {
    const PROBLEMS: i64 = 400;
    const MIB: u64 = 1 << 20;
    let farm = Farm::new().await;
    farm.job_type("large", "echo", json!({})).await;
    let server = farm.serving("a", &["--lease", "30", "--checkout-problems", "1"]).await;
    let memory = || usage::of(server.program.pid().expect("it runs")).memory_bytes;
    let before = memory();
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let mut client = AgentServiceClient::connect(server.url()).await.expect("it answers");
        let (out, requests) = mpsc::channel(16);
        out.send(hello()).await.expect("room");
        let incoming = client.work(ReceiverStream::new(requests)).await.expect("a stream").into_inner();
        let credit = Out::Credit(v1::Credit { checkouts: 64 });
        out.send(v1::AgentMessage { message: Some(credit) }).await.expect("room");
        deaf.push((out, incoming));
    }
    let problems = format!(
        "select i::text as key, to_jsonb(repeat('x', 1000000)) as payload from generate_series(1, {PROBLEMS}) i"
    );
    let job = farm.submit("large", &problems, 1).await;
    farm.until(SOON, "select count(*) > 100 from pcfarm.checkout").await;
    sleep(Duration::from_secs(2)).await; // they would get the rest at once
    let handed_out = farm.number("select count(*) from pcfarm.checkout").await;
    // Their own systems take some of it, too.
    assert!(handed_out < 300, "{handed_out} checkouts of 1 MB wait to be read");
    let taken = memory().saturating_sub(before) / MIB;
    assert!(taken < 500, "{taken} MiB for that");
    let herd = Herd::start(&[server.url()], 2, Arc::new(Nothing));
    herd.connected(2, LONG).await.expect("others");
    herd.pace(Pace { draw: true, ..Pace::default() });
    let rest = PROBLEMS - handed_out;
    farm.until(LONG, &format!("select count(*) >= {rest} from pcfarm.checkout where ended_at is not null")).await;
    drop(deaf);
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.check(&[]).await;
}

#[tokio::test]
async fn one_connection_with_more_calls_than_it_may_have() {
    let mut site = Site::start(&[]).await;
    let stream = TcpStream::connect(site.address()).await.expect("it listens");
    let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let mut task = JoinSet::new();
    task.spawn(connection);
    sleep(Duration::from_millis(200)).await; // what the server allows is on its way
    let mut open = Vec::new();
    for _ in 0..500 {
        let request = Request::post(format!("http://{}{WORK}", site.address()))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .expect("a good request");
        let Ok(Ok(ready)) = timeout(Duration::from_millis(50), client.ready()).await else { break };
        client = ready;
        match client.send_request(request, false) {
            Ok(call) => open.push(call),
            Err(_) => break,
        }
        sleep(Duration::from_millis(1)).await;
    }
    assert!(open.len() < 100, "{} calls at a time", open.len());
    site.is_served().await;
}
