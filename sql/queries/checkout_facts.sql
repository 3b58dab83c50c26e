select c.checkout_id, c.token, c.job_id, c.job_type, c.problems, c.workstation_id
from pcfarm.checkout c
where c.checkout_id = any ($1)
