-- Load lanes of these jobs that have been handed out to their end leave the dispatcher's sight; 1,000 at most.
with done as (
    select l.job_id, l.lane_id from unnest($1::bigint[]) as o(job_id)
    cross join lateral (select from pcfarm.job j where j.job_id = o.job_id and j.ended_at is null offset 0) j
    join pcfarm.lane l on l.job_id = o.job_id and not l.exhausted and l.kind <> 'retry'
    cross join lateral (
        select c.to_order from pcfarm.checkout c
        where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1) p
    where p.to_order >= l.next_insertion
    order by l.job_id, l.lane_id
    limit 1000
    for update of l skip locked)
update pcfarm.lane l set exhausted = true
from done d where l.job_id = d.job_id and l.lane_id = d.lane_id
returning l.lane_id
