-- A result is of exactly one problem, in a lane that was registered, and came under a checkout that held it.
select r.job_id, r.problem_id, r.checkout_id
from pcfarm.result r
where 1 <> (
        select count(*) from pcfarm.problem p join pcfarm.lane l on l.job_id = p.job_id and l.lane_id = p.lane_id
        where p.job_id = r.job_id and p.problem_id = r.problem_id)
    or not exists (
        select from pcfarm.held_problem h
        where h.checkout_id = r.checkout_id and h.job_id = r.job_id and h.problem_id = r.problem_id)
