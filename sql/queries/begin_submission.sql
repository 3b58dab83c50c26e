select pcfarm.begin_submission($1, $2, $3, $4)
