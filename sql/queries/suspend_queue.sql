select pcfarm.suspend_queue($1)
