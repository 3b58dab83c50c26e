-- Every problem of a job that is done or failed has a result; the others of a cancelled job are cancelled.
select p.job_id, p.problem_id, j.state
from pcfarm.job j
join pcfarm.problem p on p.job_id = j.job_id
where j.state in ('done', 'failed')
    and not exists (select from pcfarm.result r where r.job_id = p.job_id and r.problem_id = p.problem_id)
