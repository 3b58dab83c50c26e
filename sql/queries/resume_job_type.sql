select pcfarm.resume_job_type($1)
