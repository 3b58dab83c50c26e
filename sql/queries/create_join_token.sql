insert into pcfarm.join_token (hash, expires_at, uses_left)
values ($1, clock_timestamp() + $2::float8 * interval '1 second', $3)
returning join_token_id
