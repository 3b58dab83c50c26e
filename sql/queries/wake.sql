select pcfarm.wake($1)
