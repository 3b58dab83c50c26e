-- A job is failed if a problem of it is, and done if none is.
select j.job_id, j.state
from pcfarm.job j
where j.state in ('done', 'failed')
    and (j.state = 'failed') <> exists (select from pcfarm.result r where r.job_id = j.job_id and r.failed)
