select pcfarm.set_quota($1, $2, $3, $4)
