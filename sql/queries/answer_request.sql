-- What was answered, by whoever has done it.
update pcfarm.request r set status = $4, media = $5, location = $6, etag = $7, body = $8, answered_at = clock_timestamp()
where r.owner = $1 and r.key = $2 and r.server_id = $3 and r.answered_at is null
