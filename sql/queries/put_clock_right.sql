select pcfarm.put_clock_right()
