select pcfarm.set_info($1, $2)
