select f.queue_limit, f.concurrency, f.allocation::bigint, pcfarm.version_of('defaults', '') as version from pcfarm.farm f
