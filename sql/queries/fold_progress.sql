-- Folds these jobs' progress rows that have been counted into one, where there are many; the sum stays the same in every
-- snapshot.
with many as (
    select p.job_id, p.job_type from pcfarm.progress p where p.job_id = any ($1) and p.counted
    group by p.job_id, p.job_type having count(*) > 200 limit 100),
folded as (
    delete from pcfarm.progress p using many m
    where p.job_id = m.job_id and p.job_type = m.job_type and p.counted
    returning p.job_id, p.job_type, p.done, p.failed, p.requeued, p.busy_seconds)
insert into pcfarm.progress (job_id, job_type, done, failed, requeued, busy_seconds, counted)
select f.job_id, f.job_type, sum(f.done), sum(f.failed), sum(f.requeued), sum(f.busy_seconds), true from folded f group by f.job_id, f.job_type
