select pcfarm.set_farm($1)
