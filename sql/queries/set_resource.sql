select pcfarm.set_resource($1, $2, $3)
