select pg_notify('pcfarm', $1)
