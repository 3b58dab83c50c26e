-- Of these jobs, those that have ended and whose path is traced.
select j.job_id, j.name, j.job_type, j.state, j.trace_parent, j.created_at, j.opened_at, j.ended_at
from pcfarm.job j
where j.job_id = any ($1) and j.trace_parent is not null and j.ended_at is not null
order by j.job_id
