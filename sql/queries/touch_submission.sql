update pcfarm.submission s set touched_at = clock_timestamp() where s.submission_id = $1 and s.state = 'receiving'
