-- Again after 2, 4, 8 … seconds, every ten minutes at most.
update pcfarm.schedule_load l
set message = left($4, 2000), next_attempt_at = clock_timestamp() + least(interval '10 minutes', interval '1 second' * 2 ^ least(l.attempts, 12))
where l.job_id = $1 and l.number = $2 and l.attempts = $3 and l.loaded_at is null
