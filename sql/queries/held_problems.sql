-- Problems of checkouts, for a server that did not hand them out itself. The list only shrinks while they live.
select h.checkout_id, h.problem_id, h.attempts, h.home_lane, h.home_order, p.key
from pcfarm.held_problem h
cross join lateral (
    select p.key from pcfarm.problem p
    where p.job_id = h.job_id and p.lane_id = h.home_lane and p.batch_order = h.home_order and p.problem_id = h.problem_id
    offset 0) p
where h.checkout_id = any ($1)
