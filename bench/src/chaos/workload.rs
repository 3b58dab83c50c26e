//! Clients that submit jobs all the time, over gRPC and in SQL, and write down what they asked for and what they were
//! told. What nobody answers is asked again with the same idempotency key, until somebody does.

use std::sync::Arc;
use std::time::Duration;

use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_sql::connect::connect;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::Config;
use tonic::Code;
use tonic::transport::Endpoint;

use super::journal::{Cancelled, Journal, Known, Submission};

/// Longest that a call may take before its caller gives up and asks somebody else.
const PATIENCE: Duration = Duration::from_secs(10);

/// Jobs that have not ended, beyond which clients wait.
const OPEN_JOBS: i64 = 40;

const PAUSE_MS: std::ops::Range<u64> = 20..200;

/// How long after its submission a job is cancelled: some of it is under way.
const CANCEL_AFTER_MS: std::ops::Range<u64> = 0..800;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Submit.
    Go,
    /// Submit nothing new; what was begun is brought to an end.
    Wait,
    /// The same, and then end.
    End,
}

/// Clients at work.
#[derive(Debug)]
pub struct Workload {
    order: watch::Sender<Order>,
    /// Clients that wait.
    waiting: watch::Receiver<usize>,
    clients: JoinSet<()>,
    count: usize,
}

struct Client {
    number: usize,
    random: StdRng,
    endpoints: Vec<Endpoint>,
    database: Config,
    journal: Arc<Journal>,
}

impl Workload {
    /// `servers` are the addresses that clients know, `database` is for those who load with SQL.
    pub fn start(seed: u64, clients: usize, servers: &[String], database: &Config, journal: &Arc<Journal>) -> Workload {
        let (order, orders) = watch::channel(Order::Go);
        let (waits, waiting) = watch::channel(0);
        let endpoints: Vec<Endpoint> = servers
            .iter()
            .map(|url| Endpoint::from_shared(url.clone()).expect("a server's address").connect_timeout(PATIENCE))
            .collect();
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            let client = Client {
                number,
                random: StdRng::seed_from_u64(seed.wrapping_add(1 + number as u64)),
                endpoints: endpoints.clone(),
                database: database.clone(),
                journal: journal.clone(),
            };
            tasks.spawn(client.work(orders.clone(), waits.clone()));
        }
        Workload { order, waiting, clients: tasks, count: clients }
    }

    /// Nobody.
    pub fn none() -> Workload {
        let (order, _) = watch::channel(Order::End);
        let (_, waiting) = watch::channel(0);
        Workload { order, waiting, clients: JoinSet::new(), count: 0 }
    }

    /// Lets every client end what it has begun. False: it took too long, as with a farm that is down.
    pub async fn pause(&mut self, within: Duration) -> bool {
        self.order.send_replace(Order::Wait);
        let count = self.count;
        timeout(within, self.waiting.wait_for(|waiting| *waiting == count)).await.is_ok_and(|all| all.is_ok())
    }

    pub fn resume(&self) {
        self.order.send_replace(Order::Go);
    }

    /// Lets every client end what it has begun, and itself. False: it took too long.
    pub async fn end(mut self, within: Duration) -> bool {
        self.order.send_replace(Order::End);
        let all = async { while self.clients.join_next().await.is_some() {} };
        timeout(within, all).await.is_ok()
    }
}

/// A way to ask for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One message holds all.
    AtOnce,
    InParts,
    /// Held back for a while.
    Held,
    Sql,
    /// It is cancelled soon after.
    Cancelled,
    /// It goes away before it has said all: nothing may be left of it.
    Torn,
}

impl Client {
    async fn work(mut self, mut orders: watch::Receiver<Order>, waits: watch::Sender<usize>) {
        let mut number = 0;
        loop {
            let order = *orders.borrow_and_update();
            match order {
                Order::End => return,
                Order::Wait => {
                    waits.send_modify(|waiting| *waiting += 1);
                    let changed = orders.changed().await;
                    waits.send_modify(|waiting| *waiting -= 1);
                    if changed.is_err() {
                        return;
                    }
                    continue;
                }
                Order::Go => {}
            }
            if self.is_enough().await {
                sleep(Duration::from_millis(200)).await;
                continue;
            }
            number += 1;
            self.submit(number).await;
            sleep(Duration::from_millis(self.random.random_range(PAUSE_MS))).await;
        }
    }

    /// A farm that is not asked for less would be asked for ever more.
    async fn is_enough(&self) -> bool {
        let count = async {
            let (client, _connection) = connect(&self.database).await.ok()?;
            let text = "select count(*) from pcfarm.job where ended_at is null";
            client.query_one(text, &[]).await.ok()?.try_get::<_, i64>(0).ok()
        };
        match timeout(PATIENCE, count).await {
            Ok(Some(open)) => open > OPEN_JOBS,
            // It cannot be asked: that is no reason to stop asking the servers.
            Ok(None) | Err(_) => false,
        }
    }

    async fn submit(&mut self, number: u32) {
        let way =
            *[Way::AtOnce, Way::AtOnce, Way::Held, Way::Cancelled, Way::InParts, Way::InParts, Way::Sql, Way::Torn]
                .choose(&mut self.random)
                .expect("there are some");
        let key = format!("client {} job {number}", self.number);
        let job_type = *["plain", "counted", "flaky", "hasty"].choose(&mut self.random).expect("there are some");
        // Of one that is to be cancelled much is still to be handed out.
        let count = self.random.random_range(if way == Way::Cancelled { 200..700 } else { 1..120 });
        let ms = self.random.random_range(0..if job_type == "hasty" { 5 } else { 40_u64 });
        let problems: Vec<(String, String)> = (0..count)
            .map(|n| {
                let fails = u32::from(job_type == "flaky" && n % 5 == 0);
                let payload = json!({"n": n, "ms": ms, "fails": fails});
                (format!("{key} problem {n}"), payload.to_string())
            })
            .collect();
        let convoy = self.random.random_range(1..20);
        let submission = Submission { key, job_type, problems, known: Known::Started, cancelled: Cancelled::No };
        let place = self.journal.begin(submission.clone());
        if way == Way::Torn {
            drop(timeout(PATIENCE, self.tear(&submission, convoy)).await);
            return self.journal.end(place, Known::Refused);
        }
        loop {
            let known = self.ask(&submission, convoy, way).await;
            self.journal.end(place, known);
            match known {
                Known::Done(job) if way == Way::Cancelled => return self.cancel(place, job).await,
                Known::Done(job) if way == Way::Held => return self.hold(job).await,
                // As if the answer had not come.
                Known::Done(_) if self.random.random_range(0..4) == 0 => {
                    let again = self.ask(&submission, convoy, way).await;
                    if again != known && again != Known::Unknown {
                        self.journal.odd(format!("{}: {known:?} at first, and then {again:?}", submission.key));
                    }
                    return;
                }
                Known::Unknown => {}
                _ => return,
            }
            let pause = Duration::from_millis(self.random.random_range(PAUSE_MS));
            sleep(pause).await;
        }
    }

    async fn ask(&mut self, submission: &Submission, convoy: u32, way: Way) -> Known {
        let asked = async {
            match way {
                Way::Sql => self.load(submission, convoy).await,
                _ => self.upload(submission, convoy, way != Way::InParts).await,
            }
        };
        timeout(PATIENCE, asked).await.unwrap_or(Known::Unknown)
    }

    async fn upload(&mut self, submission: &Submission, convoy: u32, at_once: bool) -> Known {
        let endpoint = self.endpoints.choose(&mut self.random).expect("there are servers");
        let Ok(channel) = endpoint.connect().await else { return Known::Unknown };
        let messages = messages(submission, convoy, if at_once { usize::MAX } else { 25 });
        match JobServiceClient::new(channel).submit(tokio_stream::iter(messages)).await {
            Ok(answer) => Known::Done(JobId(answer.into_inner().job_id)),
            Err(status) => match status.code() {
                Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::PermissionDenied => {
                    self.journal.odd(format!("{} was refused: {}", submission.key, status.message()));
                    Known::Refused
                }
                _ => Known::Unknown,
            },
        }
    }

    /// Holds a job that may be under way, and lets it go on until somebody says that it does.
    async fn hold(&mut self, job: JobId) {
        let held = async |endpoint: &Endpoint| {
            let channel = endpoint.connect().await.ok()?;
            match JobServiceClient::new(channel).hold_job(v1::JobRequest { job_id: job.0 }).await {
                // It has ended.
                Err(status) if status.code() != Code::FailedPrecondition => None,
                _ => Some(()),
            }
        };
        let held = timeout(PATIENCE, held(self.endpoints.choose(&mut self.random).expect("there are servers"))).await;
        let is_known = matches!(held, Ok(Some(())));
        sleep(Duration::from_millis(self.random.random_range(CANCEL_AFTER_MS))).await;
        loop {
            let endpoint = self.endpoints.choose(&mut self.random).expect("there are servers");
            let released = async {
                let channel = endpoint.connect().await.ok()?;
                match JobServiceClient::new(channel).release_job(v1::JobRequest { job_id: job.0 }).await {
                    Ok(_) => Some(true),
                    // It has ended, or it never was held.
                    Err(status) if status.code() == Code::FailedPrecondition => Some(false),
                    Err(_) => None,
                }
            };
            match timeout(PATIENCE, released).await {
                Ok(Some(released)) => {
                    // A server that was frozen may still do what it was asked for.
                    if !released && !is_known {
                        self.journal.may_be_held(job);
                    }
                    return;
                }
                Ok(None) | Err(_) => sleep(Duration::from_millis(self.random.random_range(PAUSE_MS))).await,
            }
        }
    }

    /// Cancels a job that may be under way, until somebody says what has become of that.
    async fn cancel(&mut self, place: usize, job: JobId) {
        sleep(Duration::from_millis(self.random.random_range(CANCEL_AFTER_MS))).await;
        self.journal.cancelled(place, Cancelled::Asked);
        loop {
            let endpoint = self.endpoints.choose(&mut self.random).expect("there are servers");
            let asked = async {
                let channel = endpoint.connect().await.ok()?;
                match JobServiceClient::new(channel).cancel_job(v1::JobRequest { job_id: job.0 }).await {
                    Ok(_) => Some(Cancelled::Done),
                    Err(status) if status.code() == Code::FailedPrecondition => Some(Cancelled::TooLate),
                    Err(_) => None,
                }
            };
            if let Ok(Some(cancelled)) = timeout(PATIENCE, asked).await {
                return self.journal.cancelled(place, cancelled);
            }
            sleep(Duration::from_millis(self.random.random_range(PAUSE_MS))).await;
        }
    }

    /// Everything but the end, and then silence.
    async fn tear(&mut self, submission: &Submission, convoy: u32) {
        let endpoint = self.endpoints.choose(&mut self.random).expect("there are servers");
        let Ok(channel) = endpoint.connect().await else { return };
        let mut messages = messages(submission, convoy, 25);
        messages.pop();
        let mut client = JobServiceClient::new(channel);
        if self.random.random() {
            // In good order, but for its last word.
            drop(client.submit(tokio_stream::iter(messages)).await);
            return;
        }
        let longest = Duration::from_millis(self.random.random_range(PAUSE_MS));
        let stream = tokio_stream::StreamExt::chain(tokio_stream::iter(messages), tokio_stream::pending());
        drop(timeout(longest, client.submit(stream)).await);
    }

    async fn load(&self, submission: &Submission, convoy: u32) -> Known {
        let Ok((client, _connection)) = connect(&self.database).await else { return Known::Unknown };
        let rows: Vec<_> =
            submission.problems.iter().map(|(key, payload)| format!("({}, {})", text(key), text(payload))).collect();
        let query =
            format!("select v.key, v.payload::jsonb as payload from (values {}) as v(key, payload)", rows.join(", "));
        let options = json!({"idempotency_key": submission.key}).to_string();
        let convoy = convoy.cast_signed();
        let asked = "select pcfarm.submit($1, $2, $3, $4, $5::text::jsonb)";
        match client.query_one(asked, &[&submission.key, &submission.job_type, &query, &convoy, &options]).await {
            Ok(row) => Known::Done(row.get(0)),
            Err(error) => {
                let class = error.code().map(|state| state.code()[..2].to_owned());
                match class.as_deref() {
                    Some("22" | "23" | "42" | "P0") => {
                        self.journal.odd(format!("{} was refused: {error:?}", submission.key));
                        Known::Refused
                    }
                    _ => Known::Unknown,
                }
            }
        }
    }
}

fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn messages(submission: &Submission, convoy: u32, each: usize) -> Vec<v1::SubmitRequest> {
    let header = v1::SubmitHeader {
        name: submission.key.clone(),
        job_type: submission.job_type.to_owned(),
        options: json!({"idempotency_key": submission.key}).to_string().into(),
        convoy,
        open: true,
        ..v1::SubmitHeader::default()
    };
    // In parts, some are of groups that must not be separated.
    let grouped = each < usize::MAX && submission.problems.len().is_multiple_of(2);
    let problem = |(n, (key, payload)): &(usize, &(String, String))| v1::SubmitProblem {
        key: key.clone(),
        payload: payload.clone().into(),
        group_key: if grouped { (n / 3).to_string() } else { String::new() },
        details: None,
    };
    let numbered: Vec<_> = submission.problems.iter().enumerate().collect();
    let parts = numbered
        .chunks(each.min(numbered.len()))
        .map(|part| Part::Problems(v1::SubmitProblems { problems: part.iter().map(problem).collect() }));
    let end = Part::End(v1::SubmitEnd { problems: submission.problems.len() as i64 });
    [Part::Header(header)]
        .into_iter()
        .chain(parts)
        .chain([end])
        .map(|part| v1::SubmitRequest { part: Some(part) })
        .collect()
}
