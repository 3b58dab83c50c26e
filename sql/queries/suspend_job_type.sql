select pcfarm.suspend_job_type($1, $2)
