-- Folds a job's progress rows into one; the sum stays the same in every snapshot.
with many as (
    select p.job_id from pcfarm.progress p group by p.job_id having count(*) > 200 limit 10),
folded as (
    delete from pcfarm.progress p where p.job_id in (select job_id from many)
    returning p.job_id, p.done, p.failed, p.requeued)
insert into pcfarm.progress (job_id, done, failed, requeued)
select f.job_id, sum(f.done), sum(f.failed), sum(f.requeued) from folded f group by f.job_id
