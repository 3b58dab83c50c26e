select pcfarm.cancel_job($1)
