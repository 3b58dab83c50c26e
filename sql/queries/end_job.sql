select pcfarm.end_job_if_empty($1)
