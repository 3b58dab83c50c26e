select pcfarm.analyze_after_load($1)
