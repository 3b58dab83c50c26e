-- It can never be loaded.
update pcfarm.submission s set state = 'refused', message = $2, ended_at = clock_timestamp()
where s.submission_id = $1 and s.state = 'stored'
