select pcfarm.file_is_whole($1, $2, $3, $4)
