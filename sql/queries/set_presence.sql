select pcfarm.set_presence($1, $2)
