-- No problem had more attempts than its job type allows, and one that failed had a reason.
select r.job_id, r.problem_id, r.attempts, r.message
from pcfarm.result r
join pcfarm.checkout c on c.checkout_id = r.checkout_id
join pcfarm.job_type t on t.name = c.job_type
where r.attempts > t.max_attempts or (r.failed and r.message = '')
