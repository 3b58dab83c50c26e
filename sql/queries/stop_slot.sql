select pcfarm.stop_slot($1, $2)
