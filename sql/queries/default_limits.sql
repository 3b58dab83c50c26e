select f.queue_limit, f.concurrency, f.allocation::bigint from pcfarm.farm f
