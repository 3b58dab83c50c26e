select pcfarm.wake_for_work()
