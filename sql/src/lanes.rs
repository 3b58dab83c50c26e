//! Reading what there is to hand out: lanes of open jobs, their pointers, and the problems that come next.

use crate::json::{JsonSlice, RawJson};
use bytes::BytesMut;
use bytestring::ByteString;
use deadpool_postgres::ClientWrapper;
use futures_util::TryStreamExt;
use pcfarm_proto::ids::{BatchOrder, JobId, LaneId, ProblemId};
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

/// A lane of an open job that has something to hand out.
#[derive(Clone, Debug)]
pub struct OpenLane {
    pub job_id: JobId,
    pub owner: Arc<str>,
    pub job_name: String,
    pub priority: i32,
    pub deadline: Option<SystemTime>,
    /// Its deadline was over when this was read.
    pub late: bool,
    pub parameters: Option<RawJson>,
    /// Its problems' priority within the job.
    pub urgency: i32,
    pub lane_id: LaneId,
    pub job_type: Arc<str>,
    /// The job's, where it is another: its limits hold, too.
    pub of_type: Option<Arc<str>>,
    /// A retry lane: its problems come from `pcfarm.requeued`.
    pub came_back: bool,
    /// Serve it before the job's other lanes.
    pub first: bool,
    pub next_extraction: BatchOrder,
    pub next_insertion: BatchOrder,
    /// Problems loaded; 0 for a retry lane.
    pub problems: i64,
    /// Conditions on workstations, of its problems' type and of its job; none: any will do.
    pub requirement: Option<RawJson>,
    /// The job has an info, which goes with every checkout.
    pub has_info: bool,
    /// Its problems need files.
    pub has_files: bool,
    /// Payloads name files that their problems need.
    pub problem_files: bool,
    /// The job's, if that is traced.
    pub trace_parent: Option<Box<str>>,
}

/// All of them, in the dispatcher's order; at most 10,000.
pub async fn open_lanes(client: &ClientWrapper) -> Result<Vec<OpenLane>, Error> {
    let text = pcfarm_faults::statement(include_str!("../queries/open_lanes.sql"));
    let statement = client.prepare_cached(&text).await?;
    let rows = client.query(&statement, &[]).await?;
    rows.iter()
        .map(|row| {
            let came_back = row.try_get("came_back")?;
            Ok(OpenLane {
                job_id: row.try_get("job_id")?,
                owner: row.try_get::<_, &str>("owner")?.into(),
                job_name: row.try_get("name")?,
                priority: row.try_get("priority")?,
                deadline: row.try_get("deadline")?,
                late: row.try_get::<_, Option<bool>>("late")?.unwrap_or(false),
                parameters: row.try_get("parameters")?,
                urgency: row.try_get("urgency")?,
                lane_id: row.try_get("lane_id")?,
                job_type: row.try_get::<_, &str>("job_type")?.into(),
                of_type: row.try_get::<_, Option<&str>>("of_type")?.map(Arc::from),
                came_back,
                first: came_back && row.try_get("retry_first")?,
                next_extraction: row.try_get("next_extraction")?,
                next_insertion: row.try_get("next_insertion")?,
                problems: row.try_get("problems")?,
                requirement: row.try_get("requirement")?,
                has_info: row.try_get("has_info")?,
                has_files: row.try_get("has_files")?,
                problem_files: row.try_get("problem_files")?,
                trace_parent: row.try_get("trace_parent")?,
            })
        })
        .collect()
}

/// A problem as it is handed out.
#[derive(Clone, Debug)]
pub struct ComingProblem {
    pub problem_id: ProblemId,
    pub batch_order: BatchOrder,
    pub key: ByteString,
    pub payload: RawJson,
    /// What it counts against limits by the hour.
    pub weight: u32,
    /// Attempts used up so far.
    pub attempts: i32,
    /// Its convoy is a checkout of its own.
    pub alone: bool,
    /// It depends on the others of its convoy.
    pub grouped: bool,
    pub home_lane: LaneId,
    pub home_order: BatchOrder,
}

impl ComingProblem {
    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        size_of::<ComingProblem>() + self.payload.0.len() + self.key.len()
    }
}

/// What comes next in a lane.
#[derive(Debug)]
pub struct Coming {
    pub problems: Vec<ComingProblem>,
    /// They go to the lane's present end; otherwise the last convoy may be cut.
    pub to_the_end: bool,
    /// Not only small ones were looked for.
    pub by_size: bool,
}

/// How much to read of a lane.
#[derive(Clone, Copy, Debug)]
pub struct Portion {
    pub from: BatchOrder,
    /// Most problems.
    pub problems: i64,
    /// Most of them where they are not only small ones: how large they are as text is not known before they are read.
    pub large: i64,
    /// About how many bytes.
    pub bytes: i64,
    /// Stop before a payload that is larger than [`SMALL_PAYLOAD_BYTES`], which is quicker, unless it is the first.
    pub only_small: bool,
}

/// Rows that room is made for before they come.
const ROWS_RESERVED: usize = 20_001;

/// As PostgreSQL stores it: smaller ones are in their row.
pub const SMALL_PAYLOAD_BYTES: i32 = 1900;

/// The coming problems of a lane: at least one if there is one.
pub async fn coming_problems(client: &ClientWrapper, lane: &OpenLane, portion: Portion) -> Result<Coming, Error> {
    if lane.came_back {
        return coming_requeued(client, lane, portion).await;
    }
    if portion.only_small {
        let coming = coming_small(client, lane, portion).await?;
        if coming.to_the_end || !coming.problems.is_empty() {
            return Ok(coming);
        }
    }
    let mut payloads = Payloads::default();
    let problem = |row: &Row| coming_problem(lane, row, row.try_get(3)?, &mut payloads);
    coming_large(client, include_str!("../queries/coming_large_problems.sql"), lane, portion, problem).await
}

/// Of any size. What does not fit is dropped as it comes: as text it may be a thousand times what it is as it is stored.
async fn coming_large(
    client: &ClientWrapper,
    text: &str,
    lane: &OpenLane,
    portion: Portion,
    mut problem: impl FnMut(&Row) -> Result<ComingProblem, Error>,
) -> Result<Coming, Error> {
    let statement = client.prepare_cached(text).await?;
    let limit = portion.problems.min(portion.large);
    let parameters: [&(dyn ToSql + Sync); 5] = [&lane.job_id, &lane.lane_id, &portion.from, &limit, &portion.bytes];
    let mut rows = pin!(client.query_raw(&statement, parameters).await?);
    let (mut problems, mut looked_at) = (Fitting::new(portion.bytes), 0_i64);
    while let Some(row) = rows.try_next().await? {
        looked_at = row.try_get("looked_at")?;
        if problems.has_room() {
            problems.push(problem(&row)?);
        }
    }
    let to_the_end = looked_at < limit && problems.all.len() as i64 == looked_at;
    Ok(Coming { problems: problems.all, to_the_end, by_size: true })
}

/// Problems of about so many bytes, and never less than one.
struct Fitting {
    all: Vec<ComingProblem>,
    room: i64,
}

impl Fitting {
    fn new(bytes: i64) -> Fitting {
        Fitting { all: Vec::new(), room: bytes }
    }

    fn has_room(&self) -> bool {
        self.room > 0 || self.all.is_empty()
    }

    fn push(&mut self, problem: ComingProblem) {
        self.room = self.room.saturating_sub_unsigned(problem.bytes() as u64);
        self.all.push(problem);
    }
}

async fn coming_small(client: &ClientWrapper, lane: &OpenLane, portion: Portion) -> Result<Coming, Error> {
    let statement = client.prepare_cached(include_str!("../queries/coming_problems.sql")).await?;
    let Portion { from, problems: limit, bytes, .. } = portion;
    let parameters: [&(dyn ToSql + Sync); 5] = [&lane.job_id, &lane.lane_id, &from, &limit, &SMALL_PAYLOAD_BYTES];
    // Row by row as they come: many rows at once are out of the processor's cache when they are looked at.
    let mut rows = pin!(client.query_raw(&statement, parameters).await?);
    let mut problems = Fitting::new(bytes);
    problems.all.reserve(usize::try_from(limit).unwrap_or(0).min(ROWS_RESERVED));
    let mut payloads = Payloads::default();
    let mut cut_short = false;
    while let Some(row) = rows.try_next().await? {
        match row.try_get::<_, Option<JsonSlice<'_>>>(3)? {
            Some(payload) if !cut_short && problems.has_room() => {
                problems.push(coming_problem(lane, &row, payload, &mut payloads)?);
            }
            _ => cut_short = true,
        }
    }
    let to_the_end = !cut_short && (problems.all.len() as i64) < limit;
    Ok(Coming { problems: problems.all, to_the_end, by_size: false })
}

fn coming_problem(
    lane: &OpenLane,
    row: &Row,
    payload: JsonSlice<'_>,
    payloads: &mut Payloads,
) -> Result<ComingProblem, Error> {
    let batch_order = row.try_get(1)?;
    let (key, payload) = payloads.keep(row.try_get(2)?, payload);
    Ok(ComingProblem {
        problem_id: row.try_get(0)?,
        batch_order,
        key,
        payload,
        weight: weight(row, 4)?,
        attempts: 0,
        alone: false,
        grouped: false,
        home_lane: lane.lane_id,
        home_order: batch_order,
    })
}

fn weight(row: &Row, column: usize) -> Result<u32, Error> {
    Ok(row.try_get::<_, Option<i32>>(column)?.map_or(1, i32::unsigned_abs))
}

/// Many keys and payloads in few allocations.
#[derive(Default)]
struct Payloads {
    room: BytesMut,
    /// Bytes of the last allocation.
    shared: usize,
}

/// Bytes of keys and payloads that share an allocation, and so live as long as the last of them. A lane of a few problems must not
/// keep much more than they need: each allocation is for twice as much as the one before.
const LEAST_SHARED_BYTES: usize = 2 << 10;
const MOST_SHARED_BYTES: usize = 64 << 10;

impl Payloads {
    fn keep(&mut self, key: &str, payload: JsonSlice<'_>) -> (ByteString, RawJson) {
        let bytes = key.len() + payload.0.len();
        if self.room.capacity() < bytes {
            self.shared = (2 * self.shared).clamp(LEAST_SHARED_BYTES, MOST_SHARED_BYTES);
            self.room = BytesMut::with_capacity(self.shared.max(bytes));
        }
        self.room.extend_from_slice(key.as_bytes());
        self.room.extend_from_slice(payload.0);
        let mut payload = self.room.split().freeze();
        let key = payload.split_to(key.len());
        (ByteString::try_from(key).expect("it was text"), RawJson(payload))
    }
}

async fn coming_requeued(client: &ClientWrapper, lane: &OpenLane, portion: Portion) -> Result<Coming, Error> {
    let problem = |row: &Row| {
        Ok(ComingProblem {
            problem_id: row.try_get(0)?,
            batch_order: row.try_get(1)?,
            key: row.try_get::<_, &str>(2)?.into(),
            payload: row.try_get(3)?,
            attempts: row.try_get(4)?,
            alone: row.try_get(5)?,
            grouped: row.try_get(6)?,
            home_lane: row.try_get(7)?,
            home_order: row.try_get(8)?,
            weight: weight(row, 9)?,
        })
    };
    coming_large(client, include_str!("../queries/coming_requeued.sql"), lane, portion, problem).await
}
