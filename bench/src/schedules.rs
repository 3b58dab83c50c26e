//! Schedules of a test or a measurement, made by the thousand, and what must be true of what they have triggered.

use pcfarm_proto::ids::JobId;
use serde_json::json;

use crate::farm::Farm;

/// When a thousand schedules of the same interval are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// As evenly as milliseconds allow.
    Spread,
    AtOnce,
}

/// An open job that stays so.
pub async fn standing_job(farm: &Farm) -> JobId {
    farm.job_type("scheduled", "nobodys", json!({})).await;
    let job = farm.number("select pcfarm.create_job('scheduled', 'scheduled', '{\"standing\": true}')").await;
    farm.run(&format!("select pcfarm.open_job({job})")).await;
    JobId(job)
}

/// So many schedules of that interval, none of whose due times may be missed, the first due in `lead_seconds`. In one
/// statement: to create them one by one is not what is measured.
pub async fn make(farm: &Farm, job: JobId, count: i64, every_seconds: i64, due: Due, lead_seconds: i64) {
    let offset = match due {
        Due::Spread => format!("make_interval(secs => floor(n * 1000.0 * {every_seconds} / {count}) / 1000)"),
        Due::AtOnce => "interval '0'".to_owned(),
    };
    farm.run(&format!(
        "with first as (select date_trunc('second', clock_timestamp()) + make_interval(secs => {lead_seconds}) as at),
         made as (
             insert into pcfarm.schedule (name, recurrence, starts_at, catch_up, catch_up_limit, job_id, payload)
             select 's' || n, 'every {every_seconds}s', f.at + {offset}, 'all', 100000, {job}, jsonb_build_object('n', n)
             from generate_series(0, {count} - 1) n, first f
             returning schedule_id)
         insert into pcfarm.schedule_next (schedule_id) select schedule_id from made;
         notify pcfarm, 'schedule'"
    ))
    .await;
}

/// No more of them come; what is being triggered is waited for.
pub async fn stop(farm: &Farm) {
    farm.run(
        "update pcfarm.schedule_next set wake_at = null, due_at = null;
         update pcfarm.schedule set enabled = false",
    )
    .await;
}

/// What is in the job, against what the due times say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub triggers: i64,
    /// Due times up to the last one of their schedule that have no problem.
    pub lost: i64,
    /// Problems whose due time has another.
    pub doubled: i64,
    /// Schedules whose count is not that of their problems.
    pub miscounted: i64,
}

/// Counts problems, not what schedules say of themselves.
pub async fn account(farm: &Farm, job: JobId, every_seconds: i64) -> Account {
    let text = format!(
        "with enqueued as materialized (
             select p.payload ->> 'schedule' as name, (p.payload ->> 'due')::timestamptz as due,
                 (p.payload ->> 'sequence')::bigint as sequence
             from pcfarm.problem p where p.job_id = {job}),
         of_schedule as (
             select s.schedule_id, s.starts_at, count(e.due) as problems, count(distinct e.due) as dues, max(e.due) as last,
                 max(e.sequence) as sequence
             from pcfarm.schedule s left join enqueued e on e.name = s.name where s.job_id = {job}
             group by s.schedule_id, s.starts_at)
         select coalesce(sum(o.problems), 0)::bigint,
             coalesce(sum(coalesce(extract(epoch from o.last - o.starts_at)::bigint / {every_seconds} + 1, 0) - o.dues), 0)::bigint,
             coalesce(sum(o.problems - o.dues), 0)::bigint,
             count(*) filter (where x.sequence is distinct from o.problems or coalesce(o.sequence, 0) <> o.problems)
         from of_schedule o join pcfarm.schedule_next x on x.schedule_id = o.schedule_id"
    );
    let row = farm.account(&text).await;
    Account { triggers: row.get(0), lost: row.get(1), doubled: row.get(2), miscounted: row.get(3) }
}
