-- Problems of a lane of load behind a place in it, by the one index. $6: that have a result, have none, either.
select p.problem_id, p.lane_id, p.batch_order
from pcfarm.problem p
where p.job_id = $1 and p.lane_id = $2 and (p.batch_order, p.problem_id) > ($3, $4) and ($5 = '' or p.key = $5)
    and ($6::boolean is null or $6 = exists (
        select from pcfarm.result r where r.job_id = p.job_id and r.problem_id = p.problem_id))
order by p.batch_order, p.problem_id
limit $7
