select pcfarm.unsubscribe($1)
