select pcfarm.remove_schedule($1, $2)
