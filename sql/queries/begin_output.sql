select pcfarm.begin_output($1, $2, $3, $4, $5)
