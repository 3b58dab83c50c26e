select pcfarm.pack_staged($1, $2, $3)
