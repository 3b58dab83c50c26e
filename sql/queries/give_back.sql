select pcfarm.give_back($1, $2, $3, $4)
