select pcfarm.accept_clock()
