-- Load lanes that have been handed out to their end leave the dispatcher's sight.
with done as (
    select l.job_id, l.lane_id from pcfarm.lane l
    join pcfarm.job j on j.job_id = l.job_id and j.ended_at is null
    cross join lateral (
        select c.to_order from pcfarm.checkout c
        where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1) p
    where not l.exhausted and l.kind <> 'retry' and p.to_order >= l.next_insertion
    order by l.job_id, l.lane_id
    limit 1000
    for update of l skip locked)
update pcfarm.lane l set exhausted = true
from done d where l.job_id = d.job_id and l.lane_id = d.lane_id
