select c.checkout_id, c.workstation_id, c.job_id, c.requeued, c.failed
from pcfarm.close_checkouts($1, $2, $3) c
