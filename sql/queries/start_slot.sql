select pcfarm.start_slot($1, $2)
