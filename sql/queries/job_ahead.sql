-- Of a job that may be handed out: how many with work for the same controllers are served before it, and the next one;
-- how long the oldest of its checkouts has been out.
with work as materialized (
    select distinct q.job_id, pcfarm.announced(t.controller) as controller from pcfarm.queue_pointer q
    join pcfarm.job_type t on t.name = q.job_type
    join pcfarm.job j on j.job_id = q.job_id and j.ended_at is null
    where q.next_extraction < q.next_insertion),
ordered as materialized (select o.job_id, o.name, o.position from pcfarm.jobs_ordered o),
ahead as (
    select o.job_id, o.name, o.position from ordered o
    where o.position < (select m.position from ordered m where m.job_id = $1)
        and exists (
            select from work w join work m on m.job_id = $1 and m.controller = w.controller where w.job_id = o.job_id))
select (select count(*) from ahead) as jobs,
    (select case when pcfarm.sees(j.owner) then format('job %s (%s)', a.job_id, a.name) else 'a job of another user' end
        from ahead a join pcfarm.job j on j.job_id = a.job_id order by a.position limit 1) as first,
    (select floor(extract(epoch from clock_timestamp() - min(c.checked_out_at)))::bigint from pcfarm.checkout c
        where c.job_id = $1 and c.ended_at is null) as oldest_seconds
