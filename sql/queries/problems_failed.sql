-- Failed problems, by their partial index; a failed result says where its problem is.
select r.problem_id, r.home_lane as lane_id, r.home_order as batch_order
from pcfarm.result r
where r.job_id = $1 and r.failed and r.problem_id > $2
order by r.problem_id
limit $3
