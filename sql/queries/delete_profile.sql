select pcfarm.delete_profile($1)
