select pcfarm.forget_files()
