-- It can never be loaded, says whoever has made this attempt ($2).
update pcfarm.submission s set state = 'refused', message = $3, claimed_by = null, ended_at = clock_timestamp()
where s.submission_id = $1 and s.attempts = $2 and s.state = 'stored'
