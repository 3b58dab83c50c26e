select pcfarm.retry_job($1)
