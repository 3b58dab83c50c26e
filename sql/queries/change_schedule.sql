select pcfarm.change_schedule($1, $2, $3)
