//! Messages of `pcfarm.v1` as JSON: the same names, ids as strings, times in RFC 3339, and null for what is not there.

use super::extract::Id;
use axum::http::HeaderValue;
use axum::http::header::ETAG;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use jiff::Timestamp;
use pcfarm_proto::v1;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;
use utoipa::ToSchema;

/// How a message's field becomes one of JSON.
pub trait Show<T> {
    fn show(from: T) -> Self;
}

/// With the `ETag` of its version.
pub fn tagged<T: Serialize>(shown: T, version: &str) -> Response {
    let mut response = axum::Json(shown).into_response();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Bytes as they are
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct Content(#[expect(dead_code, reason = "for the document alone")] String);

/// A moment, in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-03-01T18:00:00Z")]
pub struct Time(String);

impl Show<prost_types::Timestamp> for Time {
    fn show(from: prost_types::Timestamp) -> Time {
        Timestamp::new(from.seconds, from.nanos).map_or_else(|_| Time(String::new()), |time| Time(time.to_string()))
    }
}

impl Show<SystemTime> for Time {
    fn show(from: SystemTime) -> Time {
        Time::show(prost_types::Timestamp::from(from))
    }
}

impl Time {
    pub fn stamp(&self) -> Option<prost_types::Timestamp> {
        let time: Timestamp = self.0.parse().ok()?;
        Some(prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() })
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("it is not a time such as 2026-03-01T18:00:00Z, from 1970 to 9999");
        let time: Timestamp = text.parse().map_err(|_| wrong())?;
        let stamp = prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() };
        crate::grpc::time(stamp).map(|_| Time(text)).ok_or_else(wrong)
    }
}

/// Any JSON value, as it was stored.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = serde_json::Value)]
pub struct Json(pub Box<RawValue>);

impl Json {
    pub fn bytes(&self) -> Bytes {
        self.0.get().to_owned().into()
    }
}

impl Show<Bytes> for Option<Json> {
    fn show(from: Bytes) -> Option<Json> {
        let text = String::from_utf8(from.into()).ok()?;
        RawValue::from_string(text).ok().map(Json)
    }
}

macro_rules! same {
    ($($type:ty),*) => { $(impl Show<$type> for $type { fn show(from: $type) -> $type { from } })* };
}
same!(String, i32, i64, u32, u64, f64, bool);

impl Show<String> for Option<String> {
    fn show(from: String) -> Option<String> {
        (!from.is_empty()).then_some(from)
    }
}

impl Show<i64> for Id {
    fn show(from: i64) -> Id {
        Id(from)
    }
}

impl Show<i64> for Option<Id> {
    fn show(from: i64) -> Option<Id> {
        (from != 0).then_some(Id(from))
    }
}

/// A batch order or the like: 64 bits, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, pattern = "^[0-9]{1,19}$", example = "1000")]
pub struct Order(i64);

impl Serialize for Order {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Show<i64> for Order {
    fn show(from: i64) -> Order {
        Order(from)
    }
}

impl Show<HashMap<String, i64>> for BTreeMap<String, i64> {
    fn show(from: HashMap<String, i64>) -> BTreeMap<String, i64> {
        from.into_iter().collect()
    }
}

impl<T, U: Show<T>> Show<Option<T>> for Option<U> {
    fn show(from: Option<T>) -> Option<U> {
        from.map(U::show)
    }
}

impl<T, U: Show<T>> Show<Vec<T>> for Vec<U> {
    fn show(from: Vec<T>) -> Vec<U> {
        from.into_iter().map(U::show).collect()
    }
}

/// A type of JSON with the fields of a message.
macro_rules! shown {
    ($($(#[$meta:meta])* $name:ident of $from:ty { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, Serialize, ToSchema)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type),* }

        impl Show<$from> for $name {
            fn show(from: $from) -> $name {
                $name { $($field: Show::show(from.$field)),* }
            }
        }
    )* };
}
pub(super) use shown;

shown! {
    /// A named batch of problems
    Job of v1::Job {
        job_id: Id,
        name: String,
        title: String,
        job_type: String,
        owner: String,
        /// loading, open, held, done, failed or cancelled
        state: String,
        /// Why it is in this state and what comes next, for people
        reason: String,
        priority: i32,
        deadline: Option<Time>,
        created_at: Option<Time>,
        opened_at: Option<Time>,
        ended_at: Option<Time>,
        problems: i64,
        done: i64,
        failed: i64,
        in_progress: i64,
        waiting: i64,
        cancelled: i64,
        /// Problems that came back with a lost, overdue or given-back checkout, counted each time
        requeued: i64,
        /// Conditions that workstations must fulfil to run it, beside those of its job type
        require: Vec<String>,
        /// Why no workstation that the farm knows, connected or not, could ever run some of what waits; empty: one could
        without_workstation: Vec<String>,
        /// Of a job that is asked for by its id
        lanes: Vec<Lane>,
        /// What its controllers and people say about it; of a job that is asked for by its id
        info: Option<Json>,
    }
    /// One sequence of batch orders
    Lane of v1::Lane {
        lane_id: Order,
        /// load, own, retry or later
        kind: String,
        job_type: String,
        next_extraction: Order,
        next_insertion: Order,
        problems: i64,
    }
    /// A problem and where it is
    Problem of v1::ProblemStatus {
        job_id: Id,
        problem_id: Id,
        key: String,
        job_type: String,
        /// waiting, in_progress, done, failed or cancelled
        state: String,
        attempts: u32,
        message: Option<String>,
        checkout_id: Option<Id>,
        workstation_id: Option<Id>,
        payload: Option<Json>,
        result: Option<Json>,
    }
    /// How a problem ended
    Outcome of v1::ProblemOutcome {
        problem_id: Id,
        key: String,
        /// done or failed
        outcome: String,
        message: Option<String>,
        /// Null where the job type keeps none
        result: Option<Json>,
    }
    Limits of v1::Limits {
        /// Most problems waiting
        queue_limit: Option<i64>,
        /// Most problems in progress; 0 stops a user
        concurrency: Option<i64>,
        /// Turns in a round; 0 takes a user out of the ring
        allocation: Option<i64>,
    }
    User of v1::User {
        name: String,
        /// Its own; what is null is as the defaults have it
        limits: Option<Limits>,
        /// Served only by workstations that require it by name
        prohibited: bool,
        waiting: i64,
        in_progress: i64,
        open_jobs: i64,
        job_types: Vec<UserJobType>,
    }
    UserJobType of v1::UserJobType {
        job_type: String,
        limits: Option<Limits>,
    }
    Resource of v1::Resource {
        name: String,
        tokens: i64,
        in_use: i64,
        description: String,
        /// What each problem in progress of a job type has
        needs: Vec<ResourceNeed>,
    }
    ResourceNeed of v1::ResourceNeed {
        job_type: String,
        tokens: i64,
    }
    /// How a kind of problem runs
    JobType of v1::JobType {
        name: String,
        controller: String,
        description: String,
        default_priority: i32,
        /// A job's deadline is its creation and this
        default_duration_seconds: Option<f64>,
        max_attempts: i32,
        /// Longest that a checkout may be in a workstation's hands
        time_limit_seconds: Option<f64>,
        /// After a failed attempt a problem waits for about this, twice as long each time
        retry_delay_seconds: Option<f64>,
        retry_delay_limit_seconds: f64,
        /// What is tried again is served first
        retry_first: bool,
        keep_results: bool,
        /// Its jobs are removed when they ended this long ago
        retention_seconds: Option<f64>,
        /// Tokens that each problem in progress has, by resource
        resources: BTreeMap<String, i64>,
        /// What a workstation must have to run it
        labels: Vec<String>,
        /// Conditions that it must fulfil, beside those labels
        require: Vec<String>,
        /// Whose rights its related reads have. This and what follows is set in SQL alone, and shown to operators
        read_role: Option<String>,
        read_time_limit_seconds: f64,
        reads: Vec<JobTypeRead>,
        write_role: Option<String>,
        write_back: Option<String>,
        suspended_since: Option<Time>,
        suspended_reason: Option<String>,
    }
    /// What is read for the problems of a checkout
    JobTypeRead of v1::JobTypeRead {
        name: String,
        query: String,
    }
    /// What a user may load in each day or month, in UTC
    Quota of v1::Quota {
        /// day or month
        period: String,
        problems: Option<i64>,
        /// Nothing is loaded any more once so many are used
        cpu_seconds: Option<f64>,
        /// Problems loaded in this period, since it is counted
        used: i64,
    }
    /// What limits a job type in some hours of the week, under some conditions
    Profile of v1::Profile {
        profile_id: Id,
        job_type: String,
        weekdays: Vec<String>,
        from: String,
        to: String,
        time_zone: String,
        problems_per_hour: Option<i64>,
        problems_per_checkout: Option<i32>,
        priority: Option<i32>,
        when: Vec<Condition>,
        /// Of all entries of its job type, it is the one that holds
        holds: bool,
        /// Why, or why not
        reason: String,
        /// Weight that was handed out under it within an hour
        used: i64,
    }
    Condition of v1::Condition {
        signal: String,
        at_least: Option<f64>,
        below: Option<f64>,
    }
    Signal of v1::Signal {
        name: String,
        value: f64,
        said_at: Option<Time>,
        holds_for_seconds: f64,
        known: bool,
    }
    WorkstationCheckout of v1::WorkstationCheckout {
        checkout_id: Id,
        job_id: Id,
        job_name: String,
        from_order: Order,
        /// Exclusive
        to_order: Order,
        problems: i64,
        since: Option<Time>,
    }
    WorkstationSpeed of v1::WorkstationSpeed {
        job_type: String,
        problems_per_second: f64,
        measured_at: Option<Time>,
    }
    /// What an agent goes by when it decides whether it may work
    PresenceSetting of v1::PresenceSetting {
        /// As in the table `[presence]` of its file
        name: String,
        value: String,
        /// default, owner or farm
        by: String,
        /// Why what the farm wants does not hold, or not wholly; null: it does, or it wants nothing
        refused: Option<String>,
    }
    /// From an input to the moment when nothing of its agent computed any more
    Yields of v1::Yields {
        p50_ms: u64,
        p99_ms: u64,
        /// Of so many times
        count: u32,
    }
    Drained of v1::Drained {
        by: String,
        since: Option<Time>,
        /// For people
        why: Option<String>,
        /// When what is not finished is given back; null: it is finished
        deadline: Option<Time>,
    }
    /// Of a workstation that failed what others solved
    Quarantine of v1::Quarantine {
        /// Of most of them
        job_type: String,
        /// How many, within an hour
        problems: i64,
        /// Some of them, the newest first
        evidence: Vec<Evidence>,
    }
    /// A problem that failed on one workstation, and was solved on another
    Evidence of v1::Evidence {
        job_id: Id,
        problem_id: Id,
        message: String,
        solved_on: Id,
    }
    ForgottenWorkstation of v1::ForgottenWorkstation {
        workstation_id: Id,
        hostname: String,
    }
    Slot of v1::Slot {
        hostname: String,
        name: String,
        started: Option<Time>,
        /// Its workstation's; null until that has connected
        state: Option<String>,
        selection: Option<String>,
    }
    /// Something that happened
    Event of v1::Event {
        event_id: Id,
        happened_at: Option<Time>,
        who: String,
        program: String,
        /// Such as "job opened"
        what: String,
        job_id: Option<Id>,
        workstation_id: Option<Id>,
        /// The name of what it happened to
        subject: Option<String>,
        details: Option<Json>,
    }
    /// Of an hour, a job type and a user
    Statistic of v1::Statistic {
        hour: Option<Time>,
        job_type: String,
        owner: String,
        done: i64,
        failed: i64,
        requeued: i64,
    }
    Server of v1::ServerStatus {
        server_id: Id,
        name: String,
        address: String,
        started_at: Option<Time>,
        heard_at: Option<Time>,
        live: bool,
    }
    FarmStatus of v1::FarmStatus {
        server_version: String,
        servers: Vec<Server>,
        workstations_waiting: i64,
        workstations_processing: i64,
        workstations_suspended: i64,
        workstations_draining: i64,
        workstations_dead: i64,
        /// Ended in good order, or asleep
        workstations_offline: i64,
        /// Their agents cannot tell whether a person is present; not among the suspended
        workstations_cannot_tell: i64,
        /// Their connections have ended without a goodbye, and their leases run; in no other state
        workstations_lost: i64,
        /// Their connections stand, and nothing is heard on them; in their states as well
        workstations_unheard: i64,
        /// They have not worked for long, though they could have; in their states as well
        workstations_without_work: i64,
        cores: i64,
        jobs_loading: i64,
        jobs_open: i64,
        jobs_held: i64,
        problems_waiting: i64,
        problems_in_progress: i64,
        refused_results: i64,
        /// Things an administrator should know
        warnings: Vec<String>,
    }
    /// The database's clock. Nothing is removed for its age while it is unproven
    Clock of v1::Clock {
        proven: bool,
        now: Option<Time>,
        /// The newest look of a server
        checked_at: Option<Time>,
        unproven_since: Option<Time>,
        /// When it is proven again, if nothing else happens
        proven_at: Option<Time>,
        /// Why it is unproven
        reasons: Vec<String>,
        /// Administrator who accepted it last
        accepted_by: String,
        accepted_at: Option<Time>,
    }
    /// Who is told of what
    Subscription of v1::Subscription {
        subscription_id: Id,
        owner: String,
        job_id: Option<Id>,
        job_type: Option<String>,
        all_users: bool,
        events: Vec<String>,
        failed_share: Option<f64>,
        /// webhook, email or notify
        channel: String,
        target: String,
        digest_at: Option<String>,
        time_zone: Option<String>,
        next_digest_at: Option<Time>,
        created_at: Option<Time>,
    }
    Alert of v1::Alert {
        alert_id: Id,
        subscription_id: Id,
        owner: String,
        channel: String,
        target: String,
        what: String,
        job_id: Option<Id>,
        job_name: Option<String>,
        /// waiting, delivered or given_up
        state: String,
        message: Option<String>,
        attempts: i32,
        created_at: Option<Time>,
        next_attempt_at: Option<Time>,
        delivered_at: Option<Time>,
        given_up_at: Option<Time>,
    }
}

/// A PC with an agent
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Workstation {
    pub workstation_id: Id,
    pub hostname: String,
    /// waiting, processing, suspended, draining, lost, offline or dead
    pub state: String,
    pub since: Option<Time>,
    pub reason: String,
    pub cores: u32,
    pub memory_bytes: u64,
    /// Name and version, for people
    pub system: String,
    /// As requirements name it: `linux`
    pub system_name: Option<String>,
    /// `x86_64`, for instance
    pub arch: Option<String>,
    /// Of each its vendor and its name
    pub gpus: Vec<String>,
    /// That problems may use, of each its name and, where it is known, its version
    pub programs: Vec<String>,
    pub agent_version: String,
    pub controllers: Vec<String>,
    pub labels: Vec<String>,
    pub holds: Vec<WorkstationCheckout>,
    pub last_heard: Option<Time>,
    pub server: Option<String>,
    /// What it may take, for people; null: whatever it can run
    pub selection: Option<String>,
    /// What its agent tells by that nobody is there; null: it has not said
    pub idle_source: Option<String>,
    /// mains or battery; null: unknown, or it does not matter there
    pub power: Option<String>,
    /// As it was measured last
    pub speed: Option<WorkstationSpeed>,
    /// By an administrator; null: it is not
    pub drained: Option<Drained>,
    /// What it failed that others solved, if that is why it is drained
    pub quarantine: Option<Quarantine>,
    /// What administrators want to remember about it
    pub note: Option<String>,
    /// How quickly its agent gave way to its person; null: it never had to
    pub yields: Option<Yields>,
    /// What its agent goes by, as it says
    pub presence: Vec<PresenceSetting>,
    /// It has said that it goes to sleep
    pub asleep: bool,
    /// Its owner lets it be woken
    pub can_be_woken: bool,
    /// When the farm began to wake it last
    pub woken: Option<Time>,
    /// Its agent cannot tell whether a person is present, so it does not work
    pub cannot_tell: bool,
    /// Its last accepted result, to the hour
    pub worked: Option<Time>,
    /// Days on which it could have worked and did not, if there are as many as the farm's limit; otherwise 0
    pub idle_days: u32,
}

impl Show<v1::Workstation> for Workstation {
    fn show(from: v1::Workstation) -> Workstation {
        let state = from.state().as_str_name().trim_start_matches("WORKSTATION_STATE_").to_ascii_lowercase();
        Workstation {
            workstation_id: Id(from.workstation_id),
            hostname: from.hostname,
            state,
            idle_source: Show::show(from.idle_source),
            power: Show::show(from.power),
            speed: Show::show(from.speed),
            drained: Show::show(from.drained),
            quarantine: Show::show(from.quarantine),
            note: Show::show(from.note),
            yields: Show::show(from.yields),
            presence: Show::show(from.presence),
            asleep: from.asleep,
            can_be_woken: from.can_be_woken,
            woken: Show::show(from.woken),
            cannot_tell: from.cannot_tell,
            worked: Show::show(from.worked),
            idle_days: from.idle_days,
            since: Show::show(from.since),
            reason: from.reason,
            cores: from.cores,
            memory_bytes: from.memory_bytes,
            system: from.system,
            system_name: Show::show(from.system_name),
            arch: Show::show(from.arch),
            gpus: from.gpus,
            programs: from.programs,
            agent_version: from.agent_version,
            controllers: from.controllers,
            labels: from.labels,
            holds: Show::show(from.holds),
            last_heard: Show::show(from.last_heard),
            server: Show::show(from.server),
            selection: Show::show(from.selection),
        }
    }
}
