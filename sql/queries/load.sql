select pcfarm.load($1, $2, $3)
