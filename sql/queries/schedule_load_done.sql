-- In the transaction that loads. No row: somebody else has done it, or is at it.
update pcfarm.schedule_load l set loaded_at = clock_timestamp(), problems = $4, message = null
where l.job_id = $1 and l.number = $2 and l.attempts = $3 and l.loaded_at is null
returning 1
