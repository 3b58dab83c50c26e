-- It could not be loaded now, says whoever has made this attempt ($2).
update pcfarm.submission s
set message = $3, claimed_by = null, next_attempt_at = clock_timestamp() + make_interval(secs => $4)
where s.submission_id = $1 and s.attempts = $2 and s.state = 'stored'
