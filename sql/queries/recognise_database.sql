select pcfarm.recognise_database($1, $2)
