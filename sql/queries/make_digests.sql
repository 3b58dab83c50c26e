select pcfarm.make_digests()
