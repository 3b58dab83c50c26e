select pcfarm.job_version($1)
