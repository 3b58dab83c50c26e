select pcfarm.set_user($1::text[]::name[], $2)
