-- Problems in live checkouts: as many as the farm holds, however long the job is.
select h.problem_id, h.home_lane as lane_id, h.home_order as batch_order
from pcfarm.held_problem h
where h.checkout_id = any (array(select c.checkout_id from pcfarm.checkout c where c.job_id = $1 and c.ended_at is null))
    and h.problem_id > $2
order by h.problem_id
limit $3
