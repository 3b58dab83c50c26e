//! The agents' service: turns a stream of messages into events for the dispatcher and the acceptors.

mod clones;
mod words;

use crate::accept::{ConnectInfo, Signs as LifeSigns};
use crate::access::places::Holder;
use crate::access::{Caller, Kind, Peer};
use crate::deliver::Delivered;
use crate::deliver::streamed::Streamed;
use crate::dispatch::Event;
use crate::farm::Farm;
use crate::files::{self, Coming, Files, For, Pieces};
use crate::grpc::files::BEGINNING_DEADLINE;
use crate::grpc::status_code;
use crate::outgoing::{MESSAGES_LIMIT, Outgoing};
use crate::registrar::{Entry, Registered, contest};
use crate::session::progress::Progress;
use crate::session::{Edge, Session};
use crate::traces::path;
use futures_util::StreamExt;
use futures_util::stream::Map;
use pcfarm_faults::{Bug, CrashPoint, crash_point, planted};
use pcfarm_proto::files::{FILE_BYTES_LIMIT, FILE_NAME_LIMIT, announced, is_file_name};
use pcfarm_proto::ids::{CheckoutId, ProblemId, slot_identity};
use pcfarm_proto::labels;
use pcfarm_proto::v1::agent_message::Message;
use pcfarm_proto::v1::put_output_request::Part;
use pcfarm_proto::v1::{self, WorkstationState, server_message};
use pcfarm_proto::version::Version;
use pcfarm_proto::{MESSAGE_BYTES_LIMIT, PROTOCOL_VERSION, SOLUTION_BYTES_LIMIT};
use pcfarm_sql::access;
use pcfarm_sql::checkout::{self, Closing, DeliveredProblem};
use pcfarm_sql::files::Output;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::presence::{
    self, Connection, Goodbye, Introduction, LiveCheckout, MachineDigest, Signs, Waking, Yields,
};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{Instrument, info, info_span, warn};
use uuid::Uuid;

/// An agent introduces itself at once, or is a stranger. A slow link carries a long Hello for longer, with bytes that prove it.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
const LONGEST_HELLO: Duration = Duration::from_secs(120);

/// Longest text in a Hello; it is shown to people.
const TEXT_LIMIT: usize = 255;

/// Controllers that one agent may offer, and programs that it may have.
const CONTROLLERS_LIMIT: usize = 1000;

const GPUS_LIMIT: usize = 64;

/// Machines to which an identity was bound before.
const MACHINES_LIMIT: usize = 8;

/// Settings that an agent may say it goes by.
const PRESENCE_LIMIT: usize = 100;

/// Results that one message may ask about. An agent sends those again that it is not told of.
const ASKED_RESULTS_LIMIT: usize = 100_000;

/// Findings about presence sources.
const NOTES_LIMIT: usize = 16;
const NOTE_BYTES_LIMIT: usize = 200;

pub struct AgentApi {
    farm: Arc<Farm>,
    files: Arc<Files>,
}

impl AgentApi {
    pub fn new(farm: Arc<Farm>, files: Arc<Files>) -> AgentApi {
        AgentApi { farm, files }
    }

    /// A certificate is worth the workstation that it names, and that one's slots; whoever has none is no workstation that
    /// has one.
    async fn is_itself(&self, caller: &Caller, identity: Uuid, hostname: &str) -> Result<(), Status> {
        match caller.kind() {
            Kind::Workstation(named) => {
                let slot = hostname.rsplit_once('#').map(|(_, slot)| slot);
                let is_its_slot = slot.is_some_and(|slot| identity == slot_identity(named, slot));
                if identity == named || is_its_slot {
                    return Ok(());
                }
                Err(Status::permission_denied(format!(
                    "this agent says that it is workstation {identity}, and its certificate is {named}'s: give it a state \
                     directory of its own"
                )))
            }
            Kind::Token(_) | Kind::Anonymous => {
                if !self.farm.access.has_workstations().await? {
                    return Ok(());
                }
                let client = self.farm.pool.get().await.map_err(status_code::of_pool)?;
                if !access::has_credential(&client, identity).await.map_err(status_code::of)? {
                    return Ok(());
                }
                Err(Status::permission_denied(
                    "this workstation has a certificate, and is to show it: connect by https",
                ))
            }
        }
    }
}

#[tonic::async_trait]
impl v1::agent_service_server::AgentService for AgentApi {
    type WorkStream = Map<ReceiverStream<Outgoing>, fn(Outgoing) -> Result<v1::ServerMessage, Status>>;

    async fn work(&self, request: Request<Streaming<v1::AgentMessage>>) -> Result<Response<Self::WorkStream>, Status> {
        let (caller, peer) = (Caller::of(&request)?, Peer::of(&request));
        let info = request.extensions().get::<ConnectInfo>();
        let progress = info.map(ConnectInfo::progress).unwrap_or_default();
        let signs = info.map_or_else(LifeSigns::default, ConnectInfo::signs);
        let mut incoming = request.into_inner();
        let mut hello = match while_bytes_come(&progress, HELLO_DEADLINE, incoming.message()).await {
            Some(Ok(Some(v1::AgentMessage { message: Some(Message::Hello(hello)) }))) => hello,
            Some(Ok(_)) => return Err(Status::invalid_argument("the first message must be Hello")),
            Some(Err(status)) => return Err(status),
            None => return Err(Status::deadline_exceeded("no Hello came")),
        };
        let wrong = labels::take_wrong(&mut hello.labels);
        let who = introduction(&hello)?;
        if !wrong.is_empty() {
            let labels = wrong.iter().take(10).map(|label| shown(label)).collect::<Vec<_>>().join(", ");
            warn!(hostname = who.hostname, labels, "what is no label is ignored: correct the agent's settings");
        }
        let known = self.is_itself(&caller, who.identity, &who.hostname).await;
        known.map_err(|refused| words::outage_told(&self.farm, refused))?;
        if hello.rebinding.as_ref().is_some_and(|rebinding| rebinding.cloned_from == hello.identity) {
            return Err(clones::reported(&self.farm, &who).await);
        }
        let credential = peer.workstation.filter(|_| matches!(caller.kind(), Kind::Workstation(_)));
        let (out, messages) = mpsc::channel(MESSAGES_LIMIT);
        let farm = self.farm.clone();
        let span = info_span!("session", hostname = who.hostname);
        // A cancelled call must not leave registering half done on a pooled connection: it runs in a task of its own.
        let task = async move {
            match register(&farm, &hello, who, credential, Edge { out: out.clone(), progress, signs }).await {
                Ok(session) => {
                    clones::note_own_identity(&farm, &session, &hello).await;
                    converse(&farm, &session, incoming).await;
                }
                Err(status) => drop(out.send(Err(words::outage_told(&farm, status)).into()).await),
            }
        };
        self.farm.tasks.spawn(task.instrument(span));
        let written: fn(Outgoing) -> _ = Outgoing::written;
        Ok(Response::new(ReceiverStream::new(messages).map(written)))
    }

    type FetchStream = Pieces;

    /// Whoever knows the checkout's token has it in hands: 64 random bits that nobody else was told.
    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Pieces>, Status> {
        let (caller, peer) = (Caller::of(&request)?, Peer::of(&request));
        let v1::FetchRequest { sha256, offset, checkout } = request.into_inner();
        let hash = files::hash(&sha256)?;
        let held = checkout.unwrap_or_default();
        let client = self.files.client().await?;
        let id = CheckoutId(held.checkout_id);
        let content = pcfarm_sql::files::for_checkout(&client, id, held.token.cast_signed(), hash).await;
        drop(client);
        let content = content.map_err(status_code::of)?.ok_or_else(|| {
            Status::not_found(format!("checkout {id} is not live, or its job type does not need file {hash}"))
        })?;
        Ok(Response::new(self.files.send(content, offset, &Holder::of(&caller, &peer))?))
    }

    async fn offer_output(&self, request: Request<v1::Output>) -> Result<Response<v1::OfferOutputResponse>, Status> {
        let wanted = self.files.offered(&output(request.into_inner())?).await.map_err(beyond_quota)?;
        Ok(Response::new(v1::OfferOutputResponse { wanted }))
    }

    async fn put_output(
        &self,
        request: Request<Streaming<v1::PutOutputRequest>>,
    ) -> Result<Response<v1::PutOutputResponse>, Status> {
        let holder = Holder::of(&Caller::of(&request)?, &Peer::of(&request));
        let mut pieces = request.into_inner();
        let first = tokio::time::timeout(BEGINNING_DEADLINE, pieces.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no file began"))??;
        let Some(v1::PutOutputRequest { part: Some(Part::Output(offered)) }) = first else {
            return Err(Status::invalid_argument("the first message of a file says what it is"));
        };
        let made = output(offered)?;
        // Before a gigabyte comes.
        if !self.files.offered(&made).await.map_err(beyond_quota)? {
            return Ok(Response::new(v1::PutOutputResponse {}));
        }
        let coming: Coming = pieces
            .map(|piece| match piece?.part {
                Some(Part::Content(content)) => Ok(content),
                Some(Part::Output(_)) | None => {
                    Err(Status::invalid_argument("behind what it is a file has content alone"))
                }
            })
            .boxed();
        let files = self.files.clone();
        // A call that is cut off must not leave something half done on a pooled connection: it is a task of its own.
        let task = self.farm.tasks.spawn(async move {
            let expected = Some(made.hash);
            files.receive(&holder, For::Problem(made), expected, coming).await.map_err(beyond_quota)
        });
        task.await.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Response::new(v1::PutOutputResponse {}))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        let caller = Caller::of(&request)?;
        let identity = uuid("identity", &request.into_inner().identity)?;
        self.is_itself(&caller, identity, "").await?;
        Ok(Response::new(v1::CheckResponse {
            protocol_version: PROTOCOL_VERSION,
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            now: Some(SystemTime::now().into()),
        }))
    }
}

/// Waits for the first message. None: it has not come within `wait` after the last bytes that prove anything.
async fn while_bytes_come<T>(progress: &Progress, wait: Duration, message: impl Future<Output = T>) -> Option<T> {
    let began = Instant::now();
    let mut message = pin!(message);
    loop {
        let left = (progress.heard(began, LONGEST_HELLO) + wait).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        if let Ok(came) = tokio::time::timeout(left, &mut message).await {
            return Some(came);
        }
    }
}

fn output(output: v1::Output) -> Result<Output, Status> {
    let held = output.checkout.unwrap_or_default();
    if !is_file_name(&output.name) {
        return Err(Status::invalid_argument(format!(
            "a file's name has 1 to {FILE_NAME_LIMIT} letters, digits and _ . -, the first no dot or dash; this is {:?}",
            output.name
        )));
    }
    if output.bytes > FILE_BYTES_LIMIT {
        let most = FILE_BYTES_LIMIT >> 20;
        return Err(Status::invalid_argument(format!("a file has at most {most} MiB, and {} has more", output.name)));
    }
    Ok(Output {
        checkout: CheckoutId(held.checkout_id),
        token: held.token.cast_signed(),
        problem: ProblemId(output.problem_id),
        hash: files::hash(&output.sha256)?,
        name: output.name,
        bytes: output.bytes.cast_signed(),
    })
}

/// Trying again does not help: the problem has failed.
fn beyond_quota(status: Status) -> Status {
    let is_quota = status.code() == Code::ResourceExhausted && status_code::is_about(&status, "most_file_bytes");
    if is_quota { Status::failed_precondition(status.message()) } else { status }
}

fn uuid(name: &str, text: &str) -> Result<Uuid, Status> {
    text.parse().map_err(|_| Status::invalid_argument(format!("{name} is not a UUID: {text:?}")))
}

fn introduction(hello: &v1::Hello) -> Result<Introduction, Status> {
    if hello.protocol_version != PROTOCOL_VERSION {
        return Err(Status::failed_precondition(format!(
            "this server speaks version {PROTOCOL_VERSION} of the agents' protocol, the agent version {}",
            hello.protocol_version
        )));
    }
    if hello.controllers.len() > CONTROLLERS_LIMIT || hello.controllers.iter().any(|c| c.len() > TEXT_LIMIT) {
        return Err(Status::invalid_argument("too many controllers, or too long a name"));
    }
    if hello.apart.len() > CONTROLLERS_LIMIT || hello.apart.iter().any(|c| c.len() > TEXT_LIMIT) {
        return Err(Status::invalid_argument("too many controllers are apart, or one has too long a name"));
    }
    labels::check(&hello.labels).map_err(|wrong| Status::invalid_argument(wrong.to_string()))?;
    check_facts(hello)?;
    Ok(Introduction {
        identity: uuid("identity", &hello.identity)?,
        instance: uuid("instance", &hello.instance)?,
        hostname: shown(&hello.hostname),
        cores: i32::try_from(hello.cores.clamp(1, 65_536)).expect("clamped"),
        memory_bytes: i64::try_from(hello.memory_bytes).unwrap_or(i64::MAX),
        system: shown(&hello.system),
        agent_version: shown(&hello.agent_version),
        controllers: hello.controllers.iter().map(|c| shown(c)).collect(),
        labels: hello.labels.clone(),
        system_name: hello.system_name.clone(),
        arch: hello.arch.clone(),
        gpus: stored_gpus(&hello.gpus),
        programs: stored_programs(&hello.programs),
        state: stored_state(hello.state()),
        signs: Signs {
            notes: notes(&hello.presence_notes),
            ..signs(&hello.idle_source, &hello.power, hello.yields.as_ref(), hello.presence.as_ref())
        },
        waking: hello.waking.as_ref().and_then(waking),
        machine: machine(&hello.machine)?,
        machines_before: machines_before(hello)?,
    })
}

/// The newest; older ones the farm does not know any more.
fn machines_before(hello: &v1::Hello) -> Result<Vec<MachineDigest>, Status> {
    let before = hello.rebinding.iter().flat_map(|rebinding| &rebinding.machines_before);
    let newest = before.rev().take(MACHINES_LIMIT);
    newest.filter_map(|digest| machine(digest).transpose()).collect()
}

fn machine(digest: &[u8]) -> Result<Option<MachineDigest>, Status> {
    match digest {
        [] => Ok(None),
        digest => digest.try_into().map(Some).map_err(|_| Status::invalid_argument("a machine's digest has 32 bytes")),
    }
}

/// What makes no sense is as good as nothing: nobody needs it but whoever wants to wake it, who is told that it cannot be woken.
fn waking(said: &v1::Waking) -> Option<Waking> {
    let card = said.card.to_ascii_lowercase();
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_card = card.split(':').count() == 6 && card.split(':').all(is_byte);
    let broadcast = said.broadcast.parse::<Ipv4Addr>().ok().map(|address| address.to_string());
    is_card.then_some(Waking { card, broadcast })
}

/// What requirements look at is made of names.
fn check_facts(hello: &v1::Hello) -> Result<(), Status> {
    let mut said = [&hello.system_name, &hello.arch].into_iter().filter(|name| !name.is_empty());
    if let Some(wrong) = said.find(|name| !labels::is_name(name)) {
        return Err(Status::invalid_argument(format!("{wrong:?} is no name of a system")));
    }
    check_equipment(&hello.gpus, &hello.programs)
}

fn check_equipment(gpus: &[v1::Gpu], programs: &[v1::Program]) -> Result<(), Status> {
    if gpus.len() > GPUS_LIMIT || programs.len() > CONTROLLERS_LIMIT {
        return Err(Status::invalid_argument("too many GPUs, or too many programs"));
    }
    let vendors = gpus.iter().map(|gpu| &gpu.vendor);
    let names = programs.iter().map(|program| &program.name);
    if let Some(wrong) = vendors.chain(names).find(|name| !labels::is_name(name)) {
        return Err(Status::invalid_argument(format!("{wrong:?} is no name of a GPU's vendor or a program")));
    }
    let versions = programs.iter().map(|program| &program.version).filter(|version| !version.is_empty());
    match versions.into_iter().find(|version| Version::of(version).is_none()) {
        None => Ok(()),
        Some(wrong) => Err(Status::invalid_argument(format!("{wrong:?} is no version: it is like 2.8.5"))),
    }
}

fn stored_gpus(gpus: &[v1::Gpu]) -> Vec<String> {
    gpus.iter().map(|gpu| shown(&format!("{} {}", gpu.vendor, gpu.name))).collect()
}

fn stored_programs(programs: &[v1::Program]) -> Vec<String> {
    let stored = |v1::Program { name, version }: &v1::Program| format!("{name} {version}").trim_end().to_owned();
    programs.iter().map(stored).collect()
}

/// Text that PostgreSQL can hold and that fits a page.
fn shown(text: &str) -> String {
    text.replace('\0', "").chars().take(TEXT_LIMIT).collect()
}

fn signs(
    idle_source: &str,
    power: &str,
    yields: Option<&v1::Yields>,
    settings: Option<&v1::PresenceSettings>,
) -> Signs {
    let yields = yields.map(|yields| Yields {
        count: i32::try_from(yields.count).unwrap_or(i32::MAX),
        p50_ms: i64::try_from(yields.p50_ms).unwrap_or(i64::MAX),
        p99_ms: i64::try_from(yields.p99_ms).unwrap_or(i64::MAX),
    });
    let setting = |one: &v1::PresenceSetting| json!({"name": shown(&one.name), "value": shown(&one.value), "by": shown(&one.by), "refused": shown(&one.refused)});
    let array = |settings: &v1::PresenceSettings| {
        let array: Vec<_> = settings.settings.iter().take(PRESENCE_LIMIT).map(setting).collect();
        RawJson(Value::from(array).to_string().into())
    };
    let settings = settings.map(array);
    Signs { idle_source: shown(idle_source), power: shown(power), yields, settings, notes: Vec::new() }
}

/// Findings of an agent about its presence sources, within the protocol's bounds.
fn notes(notes: &[String]) -> Vec<String> {
    let short = |note: &String| {
        let note = shown(note);
        note[..note.floor_char_boundary(NOTE_BYTES_LIMIT)].to_owned()
    };
    notes.iter().take(NOTES_LIMIT).map(short).collect()
}

fn stored_state(state: WorkstationState) -> &'static str {
    match state {
        WorkstationState::Suspended => "suspended",
        WorkstationState::Draining => "draining",
        WorkstationState::Unspecified
        | WorkstationState::Waiting
        | WorkstationState::Processing
        | WorkstationState::Lost
        | WorkstationState::Offline
        | WorkstationState::Dead => "waiting",
    }
}

/// Registers the workstation, settles what it held, welcomes it.
async fn register(
    farm: &Arc<Farm>,
    hello: &v1::Hello,
    who: Introduction,
    credential: Option<(Uuid, SystemTime)>,
    edge: Edge,
) -> Result<Arc<Session>, Status> {
    let cores = who.cores;
    let newcomer = clones::Newcomer::of(&who);
    let Registered { connection, live } = match contest::registered(farm, who).await? {
        Ok(registered) => registered,
        Err(refused) => return Err(clones::refuse(farm, refused, &newcomer).await),
    };
    crash_point(CrashPoint::WorkstationConnected);
    let known = Instant::now();
    let revoked = settle(farm, hello, &connection, &live).await?;
    let ended = farm.stopping.child_token();
    let session = Arc::new(Session::new(&connection, hello, credential, edge, ended, farm.rhythm.lease));
    session.set_slots(&connection.slots);
    session.set_presence(connection.presence.as_ref());
    let gone: HashSet<i64> = revoked.iter().map(|r| r.checkout_id).collect();
    for held in hello.held.iter().filter(|held| !gone.contains(&held.checkout_id)) {
        let id = CheckoutId(held.checkout_id);
        let Some(checkout) = live.get(&id) else { continue };
        let job_type = farm.job_type(&checkout.job_type);
        let controller = job_type.as_ref().map_or("", |job_type| announced(&job_type.controller));
        session.brought(id, (&checkout.job_type, controller), checkout.problems_left);
    }
    let before = farm.join(&session);
    if known.elapsed() > farm.rhythm.heartbeat {
        // By now it may have been marked as one whose row says that it is connected and that is not: its first word
        // takes that back.
        session.word_unrecorded();
    }
    if let Some(before) = before {
        before.end(if connection.same_instance {
            Status::unavailable("the workstation has connected again")
        } else {
            Status::already_exists("another agent has connected with this workstation's identity")
        });
    }
    info!(workstation_id = %connection.workstation_id, session = connection.session, cores,
        held = hello.held.len(), revoked = revoked.len(), was_dead = connection.was_dead, "workstation connected");
    let welcome = v1::Welcome {
        workstation_id: connection.workstation_id.0,
        lease: prost_types::Duration::try_from(farm.rhythm.lease).ok(),
        heartbeat: prost_types::Duration::try_from(farm.rhythm.heartbeat).ok(),
        revoked,
        solution_bytes_limit: SOLUTION_BYTES_LIMIT as u64,
        message_bytes_limit: MESSAGE_BYTES_LIMIT as u64,
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        draining: connection.drain,
        slots: connection.slots.clone(),
        takes_intake: true,
        drain_reason: connection.drain_reason.clone(),
        presence: connection.presence.clone().unwrap_or_default().0,
        woken: connection.woken,
        takes_equipment: true,
        takes_parts: true,
    };
    let message = v1::ServerMessage { message: Some(server_message::Message::Welcome(welcome)) };
    drop(session.out.try_send(Ok(message).into()));
    session.say_word(|| farm.recorded());
    Ok(session)
}

/// What the database holds for this workstation and the agent does not comes back; what the agent holds and the
/// database does not is gone, and the agent is told.
async fn settle(
    farm: &Farm,
    hello: &v1::Hello,
    connection: &Connection,
    live: &HashMap<CheckoutId, LiveCheckout>,
) -> Result<Vec<v1::Revocation>, Status> {
    let held: HashMap<CheckoutId, i64> =
        hello.held.iter().map(|h| (CheckoutId(h.checkout_id), h.token.cast_signed())).collect();
    let missing: Vec<CheckoutId> =
        live.iter().filter(|(id, checkout)| held.get(id) != Some(&checkout.token)).map(|(id, _)| *id).collect();
    if !missing.is_empty() && !planted(Bug::NeverTakesBack) {
        let (how, why) = if connection.same_instance {
            (Closing::Unreceived, "never received by its workstation".to_owned())
        } else {
            (Closing::Lost, format!("lost when the agent on workstation {} stopped", connection.workstation_id))
        };
        let client = farm.pool.get().await.map_err(status_code::of_pool)?;
        for closed in checkout::close(&*client, &missing, how, &why).await.map_err(status_code::of)? {
            warn!(checkout_id = %closed.checkout_id, requeued = closed.requeued, failed = closed.failed, why,
                "checkout taken back");
            path::revoked(farm, closed.checkout_id, &why);
        }
        crash_point(CrashPoint::WorkstationSettled);
    }
    Ok(held
        .iter()
        .filter(|(id, token)| live.get(id).is_none_or(|checkout| checkout.token != **token))
        .map(|(id, _)| v1::Revocation { checkout_id: id.0, reason: "it is not this workstation's any more".to_owned() })
        .collect())
}

/// Reads the agent's messages until the connection ends.
async fn converse(farm: &Arc<Farm>, session: &Arc<Session>, mut incoming: Streaming<v1::AgentMessage>) {
    // Waited for once, not anew with each message: with ten thousand agents that is much of what an idle server does.
    let (mut ended, mut gone) = (pin!(session.ended.cancelled()), pin!(session.out.closed()));
    let mut streamed = Streamed::new(farm.streamed.clone());
    let mut words = words::Words::new(session.unfinished_wait());
    let status = loop {
        let message = tokio::select! {
            biased;
            () = &mut ended => break Status::unavailable("the server ended the connection"),
            // The agent has stopped reading: its half of the connection is gone.
            () = &mut gone => break Status::cancelled("the agent is gone"),
            message = incoming.message() => message,
            () = words.unfinished() => {
                words.tell_unfinished(farm, session);
                continue;
            }
        };
        match message {
            Ok(Some(v1::AgentMessage { message: Some(message) })) => {
                let was_silent = session.heard();
                words.tell(farm, session);
                let mut handling = pin!(async {
                    if was_silent {
                        drop(farm.registrar.send(Entry::Heard(session.clone())).await);
                    }
                    handle(farm, session, &mut streamed, message).await
                });
                let outcome = loop {
                    tokio::select! {
                        biased;
                        outcome = &mut handling => break outcome,
                        () = &mut ended => break Err(Status::unavailable("the server ended the connection")),
                        () = &mut gone => break Err(Status::cancelled("the agent is gone")),
                        // There is no room for what it has said, and its next words are not read meanwhile.
                        () = tokio::time::sleep(farm.rhythm.heartbeat / 2) => {
                            session.excuse_silence();
                            words.tell(farm, session);
                        }
                    }
                };
                match outcome {
                    Ok(Next::Reads) => {}
                    Ok(Next::Ends) => break Status::ok("the agent has ended in good order"),
                    Err(status) => {
                        session.end(status.clone());
                        break status;
                    }
                }
            }
            Ok(Some(v1::AgentMessage { message: None })) => {
                let status = Status::invalid_argument("an empty message");
                session.end(status.clone());
                break status;
            }
            Ok(None) => break Status::ok("the agent has ended the connection"),
            Err(status) => break status,
        }
    };
    if farm.stopping.is_cancelled() {
        drop(session.out.try_send(Err(Status::unavailable("this server is stopping: connect to another")).into()));
    }
    session.ended.cancel();
    farm.leave(session);
    info!(workstation_id = %session.workstation_id, session = session.number, reason = status.message(), "connection ended");
    // A registrar that is gone has stopped with its server, whose last pulse says when.
    drop(farm.registrar.send(Entry::Ended(session.clone())).await);
}

/// Consequence of a message for the session.
enum Next {
    Reads,
    Ends,
}

async fn handle(
    farm: &Arc<Farm>,
    session: &Arc<Session>,
    streamed: &mut Streamed,
    message: Message,
) -> Result<Next, Status> {
    streamed.drop_overdue();
    match message {
        Message::Goodbye(goodbye) => {
            take_leave(farm, session, &goodbye).await;
            return Ok(Next::Ends);
        }
        Message::Hello(_) => return Err(Status::invalid_argument("Hello is the first message, and comes once")),
        Message::Credit(credit) => {
            session.add_credit(credit.checkouts);
            drop(farm.dispatcher.send(Event::Credit(session.clone())).await);
        }
        Message::Delivery(mut delivery) => {
            streamed.fill(&mut delivery)?;
            let delivered = Delivered::new(farm, session.clone(), delivery, true);
            farm.acceptor.send(delivered).await.map_err(|_| Status::unavailable("this server is stopping"))?;
        }
        Message::ResultPart(part) => {
            let received = streamed.take(part).await?;
            tell(session, server_message::Message::PartReceived(received));
        }
        Message::StoredRequest(request) => {
            let stored = stored(farm, request).await;
            tell(session, server_message::Message::Stored(stored));
        }
        Message::Heartbeat(heartbeat) => {
            let held = heartbeat.held.iter().map(|h| CheckoutId(h.checkout_id)).collect();
            session.report(held, heartbeat.last_sequence);
        }
        Message::StateChange(change) => change_state(farm, session, &change).await?,
        Message::Equipment(equipment) => equip(farm, session, &equipment).await?,
        Message::Intake(intake) => {
            if intake.paused.len() > CONTROLLERS_LIMIT {
                return Err(Status::invalid_argument("more controllers are paused than an agent may have"));
            }
            // What it does not run is not worth remembering.
            let paused = intake.paused.into_iter().filter(|name| session.controllers.contains(name)).collect();
            if session.pause(paused) {
                drop(farm.dispatcher.send(Event::Selection).await);
            }
        }
    }
    Ok(Next::Reads)
}

/// The stream ends when the goodbye is recorded, so that an agent that waits for its end knows that the farm knows.
async fn take_leave(farm: &Arc<Farm>, session: &Arc<Session>, goodbye: &v1::Goodbye) {
    session.set_leaving(true);
    let (recorded, is_recorded) = oneshot::channel();
    let entry = Entry::Left { session: session.clone(), goodbye: farewell(goodbye), recorded };
    if farm.registrar.send(entry).await.is_ok() {
        // If it is not recorded, the registrar has said so, and the lease decides.
        let _ = is_recorded.await;
    }
}

fn farewell(goodbye: &v1::Goodbye) -> Goodbye {
    use v1::goodbye::Reason;
    let (what, asleep) = match goodbye.reason() {
        Reason::Unspecified | Reason::Stopped => ("stopped in good order", false),
        Reason::Shutdown => ("shut down in good order", false),
        Reason::Sleep => ("asleep", true),
        Reason::Upgrade => ("stopped in good order to start anew", false),
    };
    let text = shown(&goodbye.text);
    let reason = if text.is_empty() { what.to_owned() } else { format!("{what}: {text}") };
    Goodbye { reason, asleep }
}

/// Takes note of a workstation's GPUs and programs, by which the dispatcher goes at once.
async fn equip(farm: &Arc<Farm>, session: &Arc<Session>, equipment: &v1::Equipment) -> Result<(), Status> {
    check_equipment(&equipment.gpus, &equipment.programs)?;
    if !session.may_equip() {
        return Err(Status::resource_exhausted("equipment is said too often: once in five seconds at most"));
    }
    if !session.equip(equipment) {
        return Ok(());
    }
    info!(workstation_id = %session.workstation_id, gpus = equipment.gpus.len(), programs = equipment.programs.len(),
        "equipment of a workstation changed");
    let recorded = async {
        let client = farm.pool.get().await?;
        let (gpus, programs) = (stored_gpus(&equipment.gpus), stored_programs(&equipment.programs));
        presence::equip(&client, session.workstation_id, session.number, &gpus, &programs).await?;
        anyhow::Ok(())
    };
    if let Err(error) = recorded.await {
        // The session is right already; the row, for people, is right again with the next Hello.
        warn!(error = format!("{error:#}"), workstation_id = %session.workstation_id, "equipment was not recorded");
    }
    drop(farm.dispatcher.send(Event::Selection).await);
    Ok(())
}

/// Sends the agent an answer.
fn tell(session: &Session, message: server_message::Message) {
    if session.out.try_send(Ok(v1::ServerMessage { message: Some(message) }).into()).is_err() {
        session.end(Status::resource_exhausted("the agent does not read its answers"));
    }
}

/// Returns which results are stored. After an empty answer the agent sends all of them again, with the same effect.
async fn stored(farm: &Farm, request: v1::StoredRequest) -> v1::Stored {
    let delivered = |checkout: &v1::DeliveredProblems| {
        let (checkout_id, token) = (CheckoutId(checkout.checkout_id), checkout.token.cast_signed());
        let problem = move |id: &i64| DeliveredProblem { checkout_id, token, problem_id: ProblemId(*id) };
        checkout.problem_ids.iter().map(problem).collect::<Vec<_>>()
    };
    let all = request.checkouts.iter().flat_map(delivered);
    let delivered: Vec<DeliveredProblem> = all.take(ASKED_RESULTS_LIMIT).collect();
    let found = async {
        let client = farm.pool.get().await?;
        anyhow::Ok(checkout::stored(&client, &delivered).await?)
    };
    let found = found.await.unwrap_or_else(|error| {
        warn!(error = format!("{error:#}"), "cannot read which results are stored: the agent sends all of them again");
        Vec::new()
    });
    let mut by_checkout: HashMap<CheckoutId, Vec<i64>> = HashMap::new();
    for (checkout_id, problem_id) in found {
        by_checkout.entry(checkout_id).or_default().push(problem_id.0);
    }
    let answer = |asked: v1::DeliveredProblems| {
        let problem_ids = by_checkout.remove(&CheckoutId(asked.checkout_id)).unwrap_or_default();
        v1::DeliveredProblems { problem_ids, ..asked }
    };
    v1::Stored { delivery_id: request.delivery_id, checkouts: request.checkouts.into_iter().map(answer).collect() }
}

async fn change_state(farm: &Arc<Farm>, session: &Arc<Session>, change: &v1::StateChange) -> Result<(), Status> {
    let state = stored_state(change.state());
    let signs = Signs {
        notes: notes(&change.presence_notes),
        ..signs(&change.idle_source, &change.power, change.yields.as_ref(), change.presence.as_ref())
    };
    let change = presence::StateChange { state, reason: shown(&change.reason), asleep: change.asleep, signs };
    session.set_suspended(state == "suspended");
    session.set_leaving(state == "draining");
    let recorded = async {
        let client = farm.pool.get().await?;
        presence::change_state(&client, session.workstation_id, session.number, &change).await?;
        anyhow::Ok(())
    };
    if let Err(error) = recorded.await {
        // What it decides is in the session; the row, for people, is right again with the next change.
        warn!(error = format!("{error:#}"), state, "a change of state was not recorded");
    }
    if state == "waiting" {
        drop(farm.dispatcher.send(Event::Credit(session.clone())).await);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::progress::Meter;

    #[tokio::test]
    async fn a_hello_has_time_while_its_bytes_come() {
        let progress = Arc::<Progress>::default();
        let mut meter = Meter::new(progress.clone(), Instant::now());
        let wait = Duration::from_secs(2);
        let began = Instant::now();
        let slow = async {
            while began.elapsed() < wait * 3 / 2 {
                meter.received(600, Instant::now());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            "hello"
        };
        assert_eq!(while_bytes_come(&progress, wait, slow).await, Some("hello"));
        let progress = Progress::default();
        let silent = while_bytes_come(&progress, Duration::from_millis(50), std::future::pending::<()>());
        assert_eq!(silent.await, None);
    }

    mod fuzz {
        use super::*;
        use prost::Message;

        /// Who says hello can be written down, or is refused.
        #[test]
        fn a_hello() {
            bolero::check!().for_each(|bytes: &[u8]| {
                let Ok(mut hello) = v1::Hello::decode(bytes) else { return };
                // Most inputs would only be refused for these.
                hello.protocol_version = PROTOCOL_VERSION;
                hello.identity = "00000000-0000-0000-0000-000000000001".to_owned();
                hello.instance.clone_from(&hello.identity);
                let Ok(who) = introduction(&hello) else { return };
                let texts = [&who.hostname, &who.system, &who.agent_version, &who.system_name, &who.arch].into_iter();
                let texts = texts.chain(&who.controllers).chain(&who.labels).chain(&who.gpus).chain(&who.programs);
                for text in texts {
                    assert!(!text.contains('\0') && text.chars().count() <= TEXT_LIMIT);
                }
                assert!(who.cores > 0 && who.memory_bytes >= 0 && who.controllers.len() <= CONTROLLERS_LIMIT);
            });
        }
    }
}
