select pcfarm.hold_job($1)
