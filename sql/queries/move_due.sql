select pcfarm.move_due(10000)
