select pcfarm.set_selection($1, $2)
