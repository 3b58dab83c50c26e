select pcfarm.check_loadable($1)
