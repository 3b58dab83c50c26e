select pcfarm.release_job($1)
