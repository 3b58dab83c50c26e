-- No result was stored under a checkout, or of a job, that had ended, and nothing was handed out of such a job.
select r.job_id, r.problem_id, r.checkout_id, c.ending, r.accepted_at - least(c.ended_at, j.ended_at) as late
from pcfarm.result r
join pcfarm.checkout c on c.checkout_id = r.checkout_id
join pcfarm.job j on j.job_id = r.job_id
where r.accepted_at > c.ended_at or r.accepted_at > j.ended_at
union all
select c.job_id, null, c.checkout_id, c.ending, c.checked_out_at - j.ended_at
from pcfarm.checkout c
join pcfarm.job j on j.job_id = c.job_id
where c.checked_out_at > j.ended_at
