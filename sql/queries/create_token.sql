insert into pcfarm.api_token (user_name, name, hash, scopes, by_login, expires_at)
values ($1::text::name, $2, $3, $4, $5, clock_timestamp() + $6::float8 * interval '1 second')
returning token_id
