select pcfarm.open_job($1)
