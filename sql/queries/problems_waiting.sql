-- Problems that were not handed out: of each lane those behind its pointer, and what came back. $3 and $4: the lane of
-- problem $2 and a batch order in it that is not behind it, so that what a page has passed is not read again.
with pointer as materialized (
    select q.lane_id, q.kind, q.next_extraction from pcfarm.queue_pointer q
    where q.job_id = $1 and q.next_extraction < q.next_insertion)
select w.problem_id, w.lane_id, w.batch_order
from (
    select p.problem_id, p.lane_id, p.batch_order
    from pointer l
    cross join lateral (
        select p.problem_id, p.lane_id, p.batch_order from pcfarm.problem p
        where p.job_id = $1 and p.lane_id = l.lane_id and p.problem_id > $2 and ($5 = '' or p.key = $5)
            and p.batch_order >= greatest(l.next_extraction, case when l.lane_id = $3::bigint then $4::bigint else 0 end)
        order by p.batch_order, p.problem_id
        limit $6) p
    where l.kind = 'load' and l.lane_id >= $3
    union all
    -- Of one's own orders: whatever is not behind a pointer, registered or not.
    (select p.problem_id, p.lane_id, p.batch_order from pcfarm.problem p
    where p.job_id = $1 and p.lane_id = 0 and p.problem_id > $2 and ($5 = '' or p.key = $5)
        and (p.batch_order is null or p.batch_order >= coalesce((
            select q.next_extraction from pcfarm.queue_pointer q where q.job_id = $1 and q.lane_id = 0), 0))
    order by p.problem_id
    limit $6)
    union all
    (select r.problem_id, r.home_lane, r.home_order
    from pointer l
    join pcfarm.requeued r on r.job_id = $1 and r.lane_id = l.lane_id and r.batch_order >= l.next_extraction
    where l.kind = 'retry' and r.problem_id > $2
    order by r.problem_id
    limit $6)
    union all
    -- By the primary key.
    (select d.problem_id, d.home_lane, d.home_order
    from pcfarm.delayed d
    where d.job_id = $1 and d.problem_id > $2
    order by d.problem_id
    limit $6)) w
order by w.problem_id
limit $6
