-- Of a job that may be handed out: how many with work for the same controller are served before it, and the next one;
-- how long the oldest of its checkouts has been out.
with ahead as (
    select o.job_id, o.name, o.position
    from pcfarm.jobs_ordered o
    join pcfarm.job_type t on t.name = o.job_type
    where o.position < (select m.position from pcfarm.jobs_ordered m where m.job_id = $1)
        and t.controller = (
            select mt.controller from pcfarm.job m join pcfarm.job_type mt on mt.name = m.job_type where m.job_id = $1)
        and exists (
            select from pcfarm.queue_pointer q where q.job_id = o.job_id and q.next_extraction < q.next_insertion))
select (select count(*) from ahead) as jobs,
    (select format('job %s (%s)', a.job_id, a.name) from ahead a order by a.position limit 1) as first,
    (select floor(extract(epoch from clock_timestamp() - min(c.checked_out_at)))::bigint from pcfarm.checkout c
        where c.job_id = $1 and c.ended_at is null) as oldest_seconds
