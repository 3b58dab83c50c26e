select pcfarm.set_signal($1, $2, $3 * interval '1 second')
