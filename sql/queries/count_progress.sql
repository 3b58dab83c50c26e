-- Adds progress to the statistics of its hour, once: of several servers that come at the same time one has each row. The sum of
-- a job's rows stays the same in every snapshot. A retry takes failures back from its job, but not from the hour in which they
-- happened. Hours are those of UTC, whatever the zone of whoever counts. Returns the jobs that it was of.
with fresh as (
    delete from pcfarm.progress p
    where p.ctid = any (array(
        select o.ctid from pcfarm.progress o where not o.counted order by o.noted_at limit 20000)) and not p.counted
    returning p.job_id, p.job_type, p.done, p.failed, p.requeued, p.busy_seconds, p.noted_at),
folded as (
    insert into pcfarm.progress (job_id, job_type, done, failed, requeued, busy_seconds, counted)
    select f.job_id, f.job_type, sum(f.done), sum(f.failed), sum(f.requeued), sum(f.busy_seconds), true from fresh f group by f.job_id, f.job_type),
added as (
    insert into pcfarm.statistic as s (hour, job_type, owner, done, failed, requeued, busy_seconds)
    select date_trunc('hour', f.noted_at, 'UTC'), f.job_type, j.owner, sum(f.done), sum(greatest(f.failed, 0)), sum(f.requeued), sum(f.busy_seconds)
    from fresh f
    join pcfarm.job j on j.job_id = f.job_id
    group by 1, 2, 3
    order by 1, 2, 3
    on conflict (hour, job_type, owner) do update set done = s.done + excluded.done, failed = s.failed + excluded.failed,
        requeued = s.requeued + excluded.requeued, busy_seconds = s.busy_seconds + excluded.busy_seconds)
select distinct f.job_id from fresh f
