select pcfarm.begin_file()
