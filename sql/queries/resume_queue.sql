select pcfarm.resume_queue()
