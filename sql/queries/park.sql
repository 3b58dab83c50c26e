select pcfarm.park($1, $2::text::name, $3, $4, $5)
