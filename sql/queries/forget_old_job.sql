select pcfarm.forget_old_job()
