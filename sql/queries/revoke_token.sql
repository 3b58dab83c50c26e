-- One's own, or anybody's.
update pcfarm.api_token t set revoked_at = coalesce(t.revoked_at, clock_timestamp())
where t.token_id = $1 and ($2::text is null or t.user_name = $2::text::name)
