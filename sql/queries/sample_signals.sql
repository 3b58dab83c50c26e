select pcfarm.sample_signals()
