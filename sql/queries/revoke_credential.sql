update pcfarm.workstation_credential c set revoked_at = coalesce(c.revoked_at, clock_timestamp()) where c.identity = $1
