-- Submits with one idempotency key take turns until commit: the key may be that of a job that was created empty.
select pg_advisory_xact_lock(hashtextextended('pcfarm.submit', $1))
