-- The same of lane 0, whose batch orders are its user's own and say nothing of problem ids.
select p.problem_id, p.lane_id, p.batch_order
from pcfarm.problem p
where p.job_id = $1 and p.lane_id = 0 and p.problem_id > $2 and ($3 = '' or p.key = $3)
    and ($4::boolean is null or $4 = exists (
        select from pcfarm.result r where r.job_id = p.job_id and r.problem_id = p.problem_id))
order by p.problem_id
limit $5
