select pcfarm.output_is_whole($1, $2, $3, $4, $5, $6, $7)
