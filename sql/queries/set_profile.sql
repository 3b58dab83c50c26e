select pcfarm.set_profile($1, $2, $3)
