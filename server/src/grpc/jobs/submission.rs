//! Submit: an upload, piece by piece, unless what comes is complete with its first problems, few and plain:
//! that is one statement. Where this does not succeed, the same messages are an upload, which finds what is wrong.
//!
//! A call that is cancelled leaves no transaction behind: a small submission that was begun comes to its end, and an upload's
//! connection has left the pool and is closed.

use super::small::SmallSubmissions;
use crate::access::Caller;
use crate::access::places::{Full, Holder, Places};
use crate::dispatch::Event;
use crate::farm::Farm;
use crate::grpc::{status_code, time};
use crate::problem::{self, json};
use crate::traces;
use crate::traces::context::Place;
use deadpool_postgres::{Object, Pool};
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{SubmitDetails, SubmitHeader, SubmitProblem, SubmitRequest};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::submissions::Attempt;
use pcfarm_sql::submit::{Begun, By, Details, Loading, NewProblem, Submitted, Target};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tonic::Status;

/// What comes, from a call or from elsewhere.
pub type Messages = BoxStream<'static, Result<SubmitRequest, Status>>;

/// Each upload has a connection to the database and a transaction for itself. Of all of them one user has some at most: others
/// have the rest, however slowly its own come.
const UPLOADS: usize = 8;
const UPLOADS_OF_A_USER: usize = 4;
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two messages of an upload, as long as its connection is slow and not gone.
const UPLOAD_PAUSE_LIMIT: Duration = Duration::from_secs(60);
/// An upload's transaction keeps the whole database from being vacuumed.
const UPLOAD_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// What is submitted in one statement.
const SMALL_PROBLEMS: usize = 500;
const SMALL_BYTES: usize = 512 << 10;
/// What is complete comes at once. Who sends on later is told sooner what is wrong with the job.
const SMALL_PATIENCE: Duration = Duration::from_millis(20);

/// Takes what is submitted, so many at a time.
pub struct Submissions {
    farm: Arc<Farm>,
    uploads: Arc<Places>,
    small: Arc<SmallSubmissions>,
}

impl Submissions {
    pub fn new(farm: Arc<Farm>) -> Submissions {
        let small = Arc::new(SmallSubmissions::new(farm.clone()));
        Submissions { farm, uploads: Places::new(UPLOADS, UPLOADS_OF_A_USER), small }
    }

    /// What was submitted; the dispatcher knows of it.
    pub async fn submitted(&self, caller: &Caller, messages: Messages) -> Result<Submitted, Status> {
        let mut parts = Parts { messages, early: VecDeque::new() };
        let wanted = Arc::new(wanted(caller, &mut parts).await?);
        if let Some(problems) = parts.small().await?
            && let Some(submitted) = self.small.submitted(&wanted, problems).await?
        {
            return Ok(submitted);
        }
        let submitted = self.upload_in_turn(&wanted, parts).await?;
        // It hears no notification of this. Full means that the dispatcher has been told often enough.
        drop(self.farm.dispatcher.try_send(Event::Work));
        Ok(submitted)
    }

    /// The same of what was stored before, which the load's transaction marks as loaded. Whoever loads those sees to it that
    /// they are few.
    pub async fn stored(&self, caller: &Caller, messages: Messages, attempt: Attempt) -> Result<Submitted, Status> {
        let mut parts = Parts { messages, early: VecDeque::new() };
        let wanted = Wanted { submission: Some(attempt), ..wanted(caller, &mut parts).await? };
        self.upload_in_time(&wanted, parts).await
    }

    async fn upload_in_turn(&self, wanted: &Wanted, parts: Parts) -> Result<Submitted, Status> {
        let holder = wanted.by.as_ref().map_or(Holder::Unknown, |(user, _)| Holder::User(user.as_str().into()));
        let _place = self.uploads.take(&holder, TURN_TIMEOUT).await.map_err(|full| match full {
            Full::All => too_many(),
            Full::Own(most) => {
                Status::resource_exhausted(format!("at most {most} loads of one user at a time: wait for some to end"))
            }
        })?;
        self.upload_in_time(wanted, parts).await
    }

    async fn upload_in_time(&self, wanted: &Wanted, parts: Parts) -> Result<Submitted, Status> {
        let upload = Box::pin(upload(&self.farm.pool, wanted, parts));
        timeout(UPLOAD_LIMIT, upload).await.unwrap_or_else(|_| {
            let hours = UPLOAD_LIMIT.as_secs() / 3600;
            Err(Status::deadline_exceeded(format!("not loaded within {hours} hours: load it in smaller parts")))
        })
    }
}

pub(super) async fn in_turn(turns: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Status> {
    match timeout(TURN_TIMEOUT, turns.acquire_owned()).await {
        Ok(turn) => Ok(turn.expect("the semaphore is never closed")),
        Err(_) => Err(too_many()),
    }
}

fn too_many() -> Status {
    Status::unavailable("this server takes as many loads already as it can: try again")
}

/// What a header asks for.
pub(super) struct Wanted {
    pub by: By,
    pub target: Target,
    pub convoy: Option<u32>,
    pub open: bool,
    /// At a stored one.
    submission: Option<Attempt>,
}

async fn wanted(caller: &Caller, parts: &mut Parts) -> Result<Wanted, Status> {
    let header = match parts.next().await? {
        Some(Part::Header(header)) => header,
        Some(Part::Problems(_) | Part::End(_)) | None => {
            return Err(Status::invalid_argument("the first message must be the header"));
        }
    };
    let (open, convoy) = (header.open, (header.convoy != 0).then_some(header.convoy));
    let by = caller.acting().map(|user| (user.to_owned(), caller.rights()));
    Ok(Wanted { by, target: target(header)?, convoy, open, submission: None })
}

/// A call's messages. The stream's end is no sign that the client has said all: tonic reports a stream that was reset by
/// CANCEL as ended.
struct Parts {
    messages: Messages,
    /// Looked at already, and still to come.
    early: VecDeque<Option<Part>>,
}

impl Parts {
    async fn next(&mut self) -> Result<Option<Part>, Status> {
        match self.early.pop_front() {
            Some(part) => Ok(part),
            None => received(&mut self.messages).await,
        }
    }

    /// Everything, if it is little and nothing is wrong with it. It is still to come all the same.
    async fn small(&mut self) -> Result<Option<Vec<NewProblem>>, Status> {
        if !self.look_ahead().await? {
            return Ok(None);
        }
        let Some(Some(Part::Problems(part))) = self.early.back() else { return Ok(None) };
        let bytes: usize = part.problems.iter().map(|problem| problem.key.len() + problem.payload.len()).sum();
        // Of none there is no lane.
        if part.problems.is_empty() || part.problems.len() > SMALL_PROBLEMS || bytes > SMALL_BYTES {
            return Ok(None);
        }
        let Ok(problems) = checked_all(0, part.problems.clone()) else { return Ok(None) };
        if !problems.iter().all(NewProblem::is_plain) {
            return Ok(None);
        }
        if !self.look_ahead().await? {
            return Ok(None);
        }
        let count = problems.len() as i64;
        let ended = matches!(self.early.back(), Some(Some(Part::End(end))) if end.problems == count);
        Ok(ended.then_some(problems))
    }

    /// Whether another one is there.
    async fn look_ahead(&mut self) -> Result<bool, Status> {
        let Ok(part) = timeout(SMALL_PATIENCE, received(&mut self.messages)).await else { return Ok(false) };
        self.early.push_back(part?);
        Ok(true)
    }
}

/// One job from a stream of messages. Whatever ends it early drops `Loading`, and with it all that was loaded.
async fn upload(pool: &Pool, wanted: &Wanted, parts: Parts) -> Result<Submitted, Status> {
    let client = Object::take(pool.get().await.map_err(status_code::of_pool)?);
    let begun = Loading::begin(client, &wanted.by, &wanted.target, wanted.convoy).await;
    let mut loading = match begun.map_err(status_code::of_load)? {
        Begun::Repeated(job) => return Ok(Submitted { job, problems: 0, repeated: true }),
        Begun::Loading(loading) => loading,
    };
    if let Some(submission) = wanted.submission {
        loading.is_submission(submission);
    }
    // While the database takes one piece, the next is received and checked.
    let (sender, receiver) = mpsc::channel(1);
    let ((), loading) = tokio::try_join!(receive(parts, sender), add_all(loading, receiver))?;
    loading.finish(wanted.open).await.map_err(status_code::of_load)
}

/// Passes problems on until the client has said that they are all.
async fn receive(mut parts: Parts, sender: mpsc::Sender<Vec<NewProblem>>) -> Result<(), Status> {
    let mut arrived = 0;
    loop {
        match parts.next().await? {
            None if planted(Bug::CommitsTornUploads) => return Ok(()),
            None => return Err(Status::invalid_argument("the last message must be the end: nothing was loaded")),
            Some(Part::End(end)) => return agreed(end.problems, arrived),
            Some(Part::Header(_)) => return Err(Status::invalid_argument("the header comes once, and first")),
            Some(Part::Problems(part)) => {
                let problems = checked_all(arrived, part.problems)?;
                arrived += problems.len() as i64;
                if sender.send(problems).await.is_err() {
                    return Ok(()); // the other side has failed, and says why
                }
            }
        }
    }
}

async fn add_all(
    mut loading: Box<Loading>,
    mut receiver: mpsc::Receiver<Vec<NewProblem>>,
) -> Result<Box<Loading>, Status> {
    while let Some(problems) = receiver.recv().await {
        loading.add(problems).await.map_err(status_code::of_load)?;
    }
    Ok(loading)
}

fn agreed(told: i64, arrived: i64) -> Result<(), Status> {
    if told == arrived {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("the end tells of {told} problems, but {arrived} came: nothing was loaded")))
}

async fn received(messages: &mut Messages) -> Result<Option<Part>, Status> {
    let message = timeout(UPLOAD_PAUSE_LIMIT, messages.try_next()).await.map_err(|_| {
        Status::deadline_exceeded(format!("nothing came for {} s: nothing was loaded", UPLOAD_PAUSE_LIMIT.as_secs()))
    })??;
    match message {
        None => Ok(None),
        Some(SubmitRequest { part: Some(part) }) => Ok(Some(part)),
        Some(SubmitRequest { part: None }) => Err(Status::invalid_argument("an empty message")),
    }
}

fn target(header: SubmitHeader) -> Result<Target, Status> {
    if header.job_id != 0 {
        if !(header.name.is_empty() && header.job_type.is_empty() && header.options.is_empty()) {
            let either = "a header names a job by its id, or says what a new one is: not both";
            return Err(Status::invalid_argument(either));
        }
        return Ok(Target::Job(JobId(header.job_id)));
    }
    for (what, text) in [("name", &header.name), ("job type", &header.job_type)] {
        if text.contains('\0') {
            return Err(Status::invalid_argument(format!("the {what} holds a NUL character")));
        }
    }
    let options = if header.options.is_empty() { "{}".into() } else { header.options };
    let options = json(&options).map_err(|wrong| Status::invalid_argument(format!("the options: {wrong}")))?.to_owned();
    let options = match traces::current() {
        // What is no object is left for the database to refuse.
        Some(place) => traced(&options, place).unwrap_or(options),
        None => options,
    };
    Ok(Target::New { name: header.name, job_type: header.job_type, options })
}

/// Options of a job whose path somebody wants to see.
fn traced(options: &str, place: Place) -> Option<String> {
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(options).ok()?;
    fields.insert("trace_parent".to_owned(), serde_json::value::to_raw_value(&place.to_string()).ok()?);
    serde_json::to_string(&fields).ok()
}

fn checked_all(arrived: i64, problems: Vec<SubmitProblem>) -> Result<Vec<NewProblem>, Status> {
    (arrived + 1..).zip(problems).map(|(number, problem)| checked(number, problem)).collect()
}

/// A problem that the database will take, or what is wrong with it.
fn checked(number: i64, problem: SubmitProblem) -> Result<NewProblem, Status> {
    let wrong = problem::wrong(&problem);
    let SubmitProblem { key, payload, group_key, details } = problem;
    match wrong {
        Some(wrong) => {
            let key: String = key.chars().take(100).collect();
            Err(Status::invalid_argument(format!("problem {number} (key {key:?}) {wrong}; nothing was loaded")))
        }
        None => {
            let group_key = (!group_key.is_empty()).then_some(group_key);
            let details = details.map(known_details).filter(|details| *details != Details::default()).map(Box::new);
            Ok(NewProblem { key, payload: RawJson(payload), group_key, details })
        }
    }
}

fn known_details(details: SubmitDetails) -> Details {
    Details {
        job_type: (!details.job_type.is_empty()).then_some(details.job_type),
        priority: details.priority,
        deadline: details.deadline.and_then(time),
        not_before: details.not_before.and_then(time),
        weight: i32::try_from(details.weight).ok().filter(|weight| *weight > 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::PAYLOAD_BYTES_LIMIT;

    fn problem(key: &str, payload: &[u8]) -> SubmitProblem {
        SubmitProblem { key: key.into(), payload: payload.to_vec().into(), group_key: String::new(), details: None }
    }

    #[test]
    fn what_the_database_would_refuse_is_refused_with_its_number_and_key() {
        let long = "k".repeat(1025);
        let large = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_LIMIT));
        let cases: [(&str, &[u8], &str); 15] = [
            ("k", b"{\"a\": [1, 2.5e3, null]}", ""),
            ("k", br#""\\u0000 \ud83d\ude00 \" \u00e4""#, ""),
            ("", b"1", "no key"),
            (&long, b"1", "1025 bytes"),
            ("a\0b", b"1", "NUL"),
            ("k", b"", "empty"),
            ("k", b"{", "not JSON"),
            ("k", b"1 2", "not JSON"),
            ("k", b"\"\xff\"", "not UTF-8"),
            ("k", br#""\u0000""#, r"\u0000"),
            ("k", br#""\\\u0000""#, r"\u0000"),
            ("k", br#""\ud800""#, r"\ud800"),
            ("k", br#""\ud800\n""#, r"\ud800"),
            ("k", br#""\udc00""#, r"\udc00"),
            ("k", large.as_bytes(), "more than"),
        ];
        for (key, payload, expected) in cases {
            match checked(42, problem(key, payload)) {
                Ok(_) => assert_eq!(expected, "", "{payload:?}"),
                Err(status) => {
                    let message = status.message();
                    assert!(message.starts_with("problem 42 (key ") && message.contains(expected), "{message}");
                    assert!(!expected.is_empty(), "{message}");
                }
            }
        }
    }

    fn has_nul(value: &serde_json::Value) -> bool {
        match value {
            serde_json::Value::String(text) => text.contains('\0'),
            serde_json::Value::Array(values) => values.iter().any(has_nul),
            serde_json::Value::Object(values) => values.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
            _ => false,
        }
    }

    proptest::proptest! {
        /// Text that is nearly JSON: taken exactly if a parser that decodes it takes it and it holds no NUL.
        #[test]
        fn json_is_what_a_parser_takes_and_the_database_stores(
            pieces in proptest::collection::vec(
                proptest::sample::select(vec![
                    "\\", "\\u", "\\u0000", "\\ud83d", "\\ude00", "\\n", "\"", "{", "}", "[", "]", ":", ",", "1", "-", " ",
                    "null", "true", "ä", "\u{1f600}", "00", "d8", "\"a\"", "\"\\u0041\"",
                ]),
                0..12,
            ),
        ) {
            for text in [pieces.concat(), format!("\"{}\"", pieces.concat())] {
                let parsed = serde_json::from_str::<serde_json::Value>(&text);
                let storable = parsed.is_ok_and(|value| !has_nul(&value));
                proptest::prop_assert_eq!(json(text.as_bytes()).is_ok(), storable, "{}", text);
            }
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            if let Ok(text) = json(&bytes) {
                proptest::prop_assert!(serde_json::from_str::<serde_json::Value>(text).is_ok());
            }
        }
    }

    mod fuzz {
        use super::*;
        use prost::Message;

        #[test]
        fn a_submission() {
            bolero::check!().for_each(|bytes: &[u8]| {
                let Ok(SubmitRequest { part: Some(part) }) = SubmitRequest::decode(bytes) else { return };
                match part {
                    Part::Header(header) => {
                        if let Ok(Target::New { name, job_type, options }) = target(header) {
                            assert!(!name.contains('\0') && !job_type.contains('\0'));
                            assert!(
                                serde_json::from_str::<serde_json::Value>(&options).is_ok_and(|value| !has_nul(&value))
                            );
                        }
                    }
                    Part::Problems(problems) => {
                        let count = problems.problems.len();
                        if let Ok(problems) = checked_all(0, problems.problems) {
                            assert_eq!(problems.len(), count);
                            assert!(problems.iter().all(|p| !p.key.is_empty() && !p.key.contains('\0')));
                        }
                    }
                    _ => {}
                }
            });
        }

        #[test]
        fn a_payload() {
            bolero::check!().for_each(|bytes: &[u8]| {
                let parsed = serde_json::from_slice::<serde_json::Value>(bytes);
                // A number that only a decoder of numbers refuses is the database's to refuse.
                let decodes =
                    parsed.as_ref().map_or_else(|error| !error.to_string().contains("number out of range"), |_| true);
                if decodes {
                    assert_eq!(json(bytes).is_ok(), parsed.is_ok_and(|value| !has_nul(&value)));
                }
            });
        }
    }
}
