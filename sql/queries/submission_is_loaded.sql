select pcfarm.submission_is_loaded($1, $2, $3, $4)
