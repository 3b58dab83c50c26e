select pcfarm.register_lane($1, $2, $3, $4)
