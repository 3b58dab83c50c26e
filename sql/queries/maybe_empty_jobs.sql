-- Of these, open jobs without anything to hand out and without a live checkout: candidates, decided under the job's lock. Lanes
-- are asked first, and live checkouts of each job by themselves: while somebody's snapshot is open, looking for one walks past
-- every one that has ended.
with handed_out as materialized (
    select j.job_id from unnest($1::bigint[]) as o(job_id)
    cross join lateral (select j.* from pcfarm.job j where j.job_id = o.job_id offset 0) j
    where j.ended_at is null and j.state = 'open' and not j.standing
        and not exists (
            select from pcfarm.lane l
            where l.job_id = j.job_id and not l.exhausted
                and (l.kind <> 'retry' or exists (
                    select from pcfarm.requeued r
                    where r.job_id = l.job_id and r.lane_id = l.lane_id
                        and r.batch_order >= coalesce((
                            select c.to_order from pcfarm.checkout c
                            where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1), 0))))
        and not exists (select from pcfarm.delayed d where d.job_id = j.job_id)
        -- As pcfarm.waits_for has it, which would be planned anew for each job.
        and not exists (
            select from pcfarm.job_after a
            join pcfarm.job b on b.job_id = a.after_job and b.state <> 'done' and not (a.ended and b.ended_at is not null)
            where a.job_id = j.job_id))
select h.job_id from handed_out h
cross join lateral (
    select count(*) as live from (
        select from pcfarm.checkout c where c.job_id = h.job_id and c.ended_at is null limit 1) c) c
where c.live = 0
order by h.job_id
