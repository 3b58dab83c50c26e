select pcfarm.update_job($1, $2, $3)
