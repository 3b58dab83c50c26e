analyze (skip_locked) pcfarm.problem
