select c.checkout_id, c.token, c.job_id, c.job_type, c.problems, c.workstation_id, c.checked_out_at,
    (select j.trace_parent from pcfarm.job j where j.job_id = c.job_id) as trace_parent
from pcfarm.checkout c
where c.checkout_id = any ($1)
