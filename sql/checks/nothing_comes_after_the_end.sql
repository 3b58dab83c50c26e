-- No result was stored under a checkout that had ended.
select r.job_id, r.problem_id, r.checkout_id, c.ending, r.accepted_at - c.ended_at as late
from pcfarm.result r
join pcfarm.checkout c on c.checkout_id = r.checkout_id
where r.accepted_at > c.ended_at
