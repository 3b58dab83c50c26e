update pcfarm.join_token t set revoked_at = coalesce(t.revoked_at, clock_timestamp()) where t.join_token_id = $1
