update pcfarm.server s set stopped_at = clock_timestamp() where s.server_id = $1
