-- The same of a retry lane; the problems' rows are found at their homes by the dispatch index.
select r.problem_id, r.batch_order, p.key, p.payload, r.attempts, r.alone, r.grouped, r.home_lane, r.home_order
from (
    select r.job_id, r.problem_id, r.batch_order, r.attempts, r.alone, r.grouped, r.home_lane, r.home_order
    from pcfarm.requeued r
    where r.job_id = $1 and r.lane_id = $2 and r.batch_order >= $3
    order by r.batch_order, r.problem_id
    limit $4) r
join pcfarm.problem p on p.job_id = r.job_id and p.lane_id = r.home_lane and p.batch_order = r.home_order
    and p.problem_id = r.problem_id
order by r.batch_order, r.problem_id
