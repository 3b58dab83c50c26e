//! A server that speaks the agents' protocol as the test tells it, and agents that run against it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::left_out;
use bytes::Bytes;
use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_message::Message as FromAgent;
use pcfarm_proto::v1::agent_service_server::{AgentService, AgentServiceServer};
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::v1::server_message::Message as ToAgent;
use pcfarm_worker::presence::settings as presence;
use pcfarm_worker::{Agent, AgentError, Settings};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// Longer than anything here takes: a supervisor that has to be killed takes 12 s.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Server {
    pub address: SocketAddr,
    sessions: mpsc::Receiver<Session>,
    pub files: Arc<Files>,
    tasks: JoinSet<Result<(), tonic::transport::Error>>,
}

pub struct Session {
    pub to_agent: mpsc::Sender<Result<v1::ServerMessage, Status>>,
    from_agent: Streaming<v1::AgentMessage>,
    sequence: AtomicU64,
}

/// What a problem has made: problem and name, and content if it was sent.
pub type Made = (i64, String, Option<Vec<u8>>);

/// What it has of files, and how it gives them.
#[derive(Default)]
pub struct Files {
    by_hash: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    /// Pieces that are sent before a stream breaks off.
    pub breaks_after: AtomicU64,
    pub fetches: AtomicU64,
    pub outputs: Mutex<Vec<Made>>,
    /// So many of the next files that are sent break off.
    pub puts_break_off: AtomicU64,
    /// Why the next files are not taken.
    pub refuses: Mutex<Option<Status>>,
}

/// Small, so that files have many.
const PIECE_BYTES: usize = 4096;

impl Files {
    /// Returns its hash in hexadecimal digits.
    pub fn put(&self, content: &[u8]) -> String {
        let hash = Sha256::digest(content).to_vec();
        self.put_as(&hash, content);
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn put_as(&self, hash: &[u8], content: &[u8]) {
        self.by_hash.lock().expect("no panic").insert(hash.to_vec(), content.to_vec());
    }
}

struct Service {
    sessions: mpsc::Sender<Session>,
    files: Arc<Files>,
}

#[tonic::async_trait]
impl AgentService for Service {
    type WorkStream = ReceiverStream<Result<v1::ServerMessage, Status>>;

    async fn work(&self, request: Request<Streaming<v1::AgentMessage>>) -> Result<Response<Self::WorkStream>, Status> {
        let (to_agent, stream) = mpsc::channel(16);
        let session = Session { to_agent, from_agent: request.into_inner(), sequence: AtomicU64::new(0) };
        self.sessions.send(session).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn check(&self, _: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        Err(Status::unimplemented("nobody looks for faults here"))
    }

    async fn offer_output(&self, request: Request<v1::Output>) -> Result<Response<v1::OfferOutputResponse>, Status> {
        let output = request.into_inner();
        let checkout = output.checkout.expect("an agent says which");
        assert_eq!(checkout.token, 7 * checkout.checkout_id.unsigned_abs());
        if let Some(status) = self.files.refuses.lock().expect("no panic").clone() {
            return Err(status);
        }
        let wanted = !self.files.by_hash.lock().expect("no panic").contains_key(&output.sha256[..]);
        if !wanted {
            self.files.outputs.lock().expect("no panic").push((output.problem_id, output.name, None));
        }
        Ok(Response::new(v1::OfferOutputResponse { wanted }))
    }

    async fn put_output(
        &self,
        request: Request<Streaming<v1::PutOutputRequest>>,
    ) -> Result<Response<v1::PutOutputResponse>, Status> {
        let mut pieces = request.into_inner();
        let first = pieces.message().await?.expect("a first message");
        let Some(v1::put_output_request::Part::Output(output)) = first.part else { panic!("{first:?}") };
        let breaks = |left: u64| left.checked_sub(1);
        if self.files.puts_break_off.fetch_update(Ordering::Relaxed, Ordering::Relaxed, breaks).is_ok() {
            return Err(Status::unavailable("the server stops"));
        }
        let mut content = Vec::new();
        while let Some(piece) = pieces.message().await? {
            let Some(v1::put_output_request::Part::Content(more)) = piece.part else { panic!("{piece:?}") };
            content.extend_from_slice(&more);
        }
        assert_eq!(content.len() as u64, output.bytes);
        if Sha256::digest(&content)[..] != output.sha256[..] {
            return Err(Status::invalid_argument("other content than its hash says"));
        }
        self.files.put(&content);
        self.files.outputs.lock().expect("no panic").push((output.problem_id, output.name, Some(content)));
        Ok(Response::new(v1::PutOutputResponse {}))
    }

    type FetchStream = ReceiverStream<Result<v1::FilePiece, Status>>;

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        self.files.fetches.fetch_add(1, Ordering::Relaxed);
        let request = request.into_inner();
        let checkout = request.checkout.expect("an agent says which");
        assert_eq!(checkout.token, 7 * checkout.checkout_id.unsigned_abs());
        let content = self.files.by_hash.lock().expect("no panic").get(&request.sha256[..]).cloned();
        let content = content.ok_or_else(|| Status::not_found("no such file"))?;
        let breaks_after = self.files.breaks_after.load(Ordering::Relaxed);
        let rest = content[usize::try_from(request.offset).expect("small")..].to_vec();
        let piece = |bytes: &[u8]| {
            Ok(v1::FilePiece { total_bytes: content.len() as u64, content: Bytes::copy_from_slice(bytes) })
        };
        let mut pieces: Vec<Result<v1::FilePiece, Status>> = rest.chunks(PIECE_BYTES).map(piece).collect();
        if rest.is_empty() {
            pieces.push(piece(b""));
        }
        if breaks_after > 0 && pieces.len() as u64 > breaks_after {
            pieces.truncate(usize::try_from(breaks_after).expect("small"));
            pieces.push(Err(Status::unavailable("the server stops")));
        }
        let (sender, stream) = mpsc::channel(pieces.len());
        pieces.into_iter().for_each(|piece| sender.try_send(piece).expect("there is room"));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl Server {
    pub async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let (sender, sessions) = mpsc::channel(4);
        let files = Arc::<Files>::default();
        let service = AgentServiceServer::new(Service { sessions: sender, files: Arc::clone(&files) });
        let mut tasks = JoinSet::new();
        let router = tonic::transport::Server::builder().add_service(service);
        tasks.spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        Server { address, sessions, files, tasks }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next agent to connect, with its Hello; not welcomed yet.
    pub async fn greeted(&mut self) -> (Session, v1::Hello) {
        let mut session = timeout(PATIENCE, self.sessions.recv()).await.expect("an agent connects").expect("a session");
        match session.any().await {
            Some(FromAgent::Hello(hello)) => (session, hello),
            other => panic!("not a Hello: {other:?}"),
        }
    }

    pub async fn welcomed(&mut self) -> (Session, v1::Hello) {
        let (session, hello) = self.greeted().await;
        session.welcome().await;
        (session, hello)
    }

    /// Closes the listener and every connection.
    pub async fn stop(mut self) {
        self.end().await;
    }

    pub async fn end(&mut self) {
        self.tasks.shutdown().await;
    }
}

impl Session {
    pub async fn welcome(&self) {
        self.welcome_for(20).await;
    }

    /// With a lease of so many seconds.
    pub async fn welcome_for(&self, lease: i64) {
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        self.send(ToAgent::Welcome(v1::Welcome {
            workstation_id: 1,
            lease: seconds(lease),
            heartbeat: seconds(5),
            takes_intake: true,
            ..Default::default()
        }))
        .await;
    }

    pub async fn send(&self, message: ToAgent) {
        let message = v1::ServerMessage { message: Some(message) };
        self.to_agent.send(Ok(message)).await.expect("the agent listens");
    }

    /// Hands out problems with ids from 1000 × `id` on, one per payload, and 7 × `id` for its token.
    pub async fn check_out(&self, id: i64, controller: &str, payloads: impl IntoIterator<Item = String>) {
        self.send(ToAgent::Checkout(self.checkout(id, controller, payloads))).await;
    }

    /// The same, of a job with files: names and hashes.
    pub async fn check_out_with_files(
        &self,
        id: i64,
        controller: &str,
        payloads: impl IntoIterator<Item = String>,
        files: &[(&str, &str)],
    ) {
        let checkout = self.checkout(id, controller, payloads);
        let checkout = v1::Checkout { files: files.iter().map(job_file).collect(), ..checkout };
        self.send(ToAgent::Checkout(checkout)).await;
    }

    /// A job whose payloads name files of their problems.
    pub async fn check_out_naming_files(
        &self,
        id: i64,
        controller: &str,
        payloads: impl IntoIterator<Item = String>,
        files: &[(&str, &str)],
    ) {
        let checkout = self.checkout(id, controller, payloads);
        let files = files.iter().map(job_file).collect();
        self.send(ToAgent::Checkout(v1::Checkout { files, problem_files: true, ..checkout })).await;
    }

    /// The same, each with its batch order: those that share one are a convoy.
    pub async fn check_out_convoys(&self, id: i64, controller: &str, problems: &[(i64, String)]) {
        let mut checkout = self.checkout(id, controller, problems.iter().map(|(_, payload)| payload.clone()));
        for (problem, (batch_order, _)) in checkout.problems.iter_mut().zip(problems) {
            problem.batch_order = *batch_order;
        }
        self.send(ToAgent::Checkout(checkout)).await;
    }

    pub async fn check_out_one_by_one(&self, id: i64, controller: &str, payloads: impl IntoIterator<Item = String>) {
        let checkout = v1::Checkout { one_by_one: true, ..self.checkout(id, controller, payloads) };
        self.send(ToAgent::Checkout(checkout)).await;
    }

    fn checkout(&self, id: i64, controller: &str, payloads: impl IntoIterator<Item = String>) -> v1::Checkout {
        let problem = |(index, payload): (i64, String)| v1::Problem {
            problem_id: 1000 * id + index,
            key: index.to_string().into(),
            payload: Bytes::from(payload),
            attempt: 1,
            ..Default::default()
        };
        v1::Checkout {
            checkout_id: id,
            token: 7 * id.unsigned_abs(),
            job_name: "test".to_owned(),
            controller: controller.to_owned(),
            problems: (0..).zip(payloads).map(problem).collect(),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            ..Default::default()
        }
    }

    pub async fn revoke(&self, checkout_id: i64) {
        let revocation = v1::Revocation { checkout_id, reason: "overdue".to_owned() };
        self.send(ToAgent::Revoke(v1::Revoke { revoked: vec![revocation] })).await;
    }

    pub async fn acknowledge(&self, delivery: &v1::Delivery) {
        let verdict = |part: &v1::CheckoutResults| v1::CheckoutVerdict {
            checkout_id: part.checkout_id,
            verdict: v1::Verdict::Accepted.into(),
            accepted: u32::try_from(part.results.len()).expect("few results"),
            ..Default::default()
        };
        let verdicts = delivery.checkouts.iter().map(verdict).collect();
        self.send(ToAgent::DeliveryAck(v1::DeliveryAck { delivery_id: delivery.delivery_id, verdicts, took: None }))
            .await;
    }

    /// What the agent says next; nothing once it has ended its side.
    pub async fn any(&mut self) -> Option<FromAgent> {
        let message = timeout(PATIENCE, self.from_agent.message()).await.expect("the agent says something");
        message.ok().flatten().and_then(|message| message.message)
    }

    /// The next message that `wanted` makes something of; others are passed over.
    pub async fn next<T>(&mut self, wanted: impl Fn(FromAgent) -> Option<T>) -> T {
        loop {
            let message = self.any().await.expect("the agent is still there");
            if let Some(found) = wanted(message) {
                return found;
            }
        }
    }

    pub async fn delivery(&mut self) -> v1::Delivery {
        self.next(|message| if let FromAgent::Delivery(delivery) = message { Some(delivery) } else { None }).await
    }

    pub async fn state(&mut self) -> v1::WorkstationState {
        self.next(|message| if let FromAgent::StateChange(change) = message { Some(change.state()) } else { None })
            .await
    }

    /// Passes over all until the agent says that it is in this state, and returns why.
    pub async fn until_state(&mut self, state: v1::WorkstationState) -> String {
        let in_it = |message| match message {
            FromAgent::StateChange(change) if change.state() == state => Some(change.reason),
            _ => None,
        };
        self.next(in_it).await
    }

    pub async fn credit(&mut self) -> u32 {
        self.next(|message| if let FromAgent::Credit(credit) = message { Some(credit.checkouts) } else { None }).await
    }
}

/// Processes with this mark in their environment, zombies excepted, which have none.
#[cfg(target_os = "linux")]
pub fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("MARK={mark}");
    let of = |entry: std::fs::DirEntry| -> Option<i32> {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes()).then_some(pid)
    };
    std::fs::read_dir("/proc").expect("this is Linux").flatten().filter_map(of).collect()
}

pub struct RunningAgent {
    pub stop: CancellationToken,
    tasks: JoinSet<Result<(), AgentError>>,
    state_dir: tempfile::TempDir,
}

pub fn settings(servers: &[&Server], state_dir: &std::path::Path) -> Settings {
    Settings {
        servers: servers.iter().map(|server| server.url()).collect(),
        state_dir: state_dir.to_owned(),
        cores: 2,
        hostname: "desk".to_owned(),
        presence: presence::Settings::unattended(),
        ..Settings::default()
    }
}

impl RunningAgent {
    pub fn start(agent: Agent, servers: &[&Server], adjust: impl FnOnce(&mut Settings)) -> RunningAgent {
        let state_dir = tempfile::tempdir().expect("a temporary directory");
        let mut settings = settings(servers, state_dir.path());
        adjust(&mut settings);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.run_with(settings, stop.clone()));
        RunningAgent { stop, tasks, state_dir }
    }

    pub fn state_dir(&self) -> &std::path::Path {
        self.state_dir.path()
    }

    pub async fn ended(&mut self) -> Result<(), AgentError> {
        let ended = timeout(PATIENCE, self.tasks.join_next()).await.expect("the agent ends");
        ended.expect("it was started").expect("it does not panic")
    }
}

/// Problem ids and what became of them, in order.
pub fn outcomes(part: &v1::CheckoutResults) -> Vec<(i64, String)> {
    let text = |result: &v1::ProblemResult| match &result.outcome {
        Some(Outcome::Solution(solution)) => String::from_utf8(solution.to_vec()).expect("solutions are text"),
        Some(Outcome::Failure(message)) => format!("failed: {message}"),
        Some(Outcome::Streamed(_) | Outcome::StreamedResult(_)) => unreachable!("only measured links stream"),
        None => panic!("a result without an outcome"),
    };
    let mut outcomes: Vec<(i64, String)> =
        part.results.iter().map(|result| (result.problem_id, text(result))).collect();
    outcomes.sort();
    outcomes
}

fn job_file((name, hash): &(&str, &str)) -> v1::JobFile {
    let hash: pcfarm_proto::files::FileHash = hash.parse().expect("a hash");
    v1::JobFile { name: (*name).to_owned(), sha256: hash.0.to_vec().into() }
}

/// A source in C as a module; none, where nothing can make one.
pub fn module_of_c(source: &std::path::Path) -> Option<Vec<u8>> {
    let out = tempfile::NamedTempFile::new().expect("a file");
    let made = std::process::Command::new("clang")
        .args(["--target=wasm32-wasi", "-O2", "-o"])
        .arg(out.path())
        .arg(source)
        .output();
    match made {
        Ok(made) if made.status.success() => Some(std::fs::read(out.path()).expect("it was made")),
        Ok(made) => {
            eprintln!("{}", String::from_utf8_lossy(&made.stderr));
            left_out::for_want_of("wasi-libc, so that clang makes modules");
            None
        }
        Err(error) => {
            left_out::for_want_of(&format!("clang with wasi-libc ({error})"));
            None
        }
    }
}

pub fn puppet_module() -> Option<Vec<u8>> {
    static MADE: std::sync::OnceLock<Option<Vec<u8>>> = std::sync::OnceLock::new();
    MADE.get_or_init(|| module_of_c(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/puppet.c")))
        .clone()
}
