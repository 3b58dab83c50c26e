-- It could not be loaded now.
update pcfarm.submission s set message = $2, next_attempt_at = clock_timestamp() + make_interval(secs => $3)
where s.submission_id = $1 and s.state = 'stored'
