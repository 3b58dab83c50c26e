-- By the key that has joined, and not long after its last certificate has expired: holidays are shorter.
update pcfarm.workstation_credential c set serial = $2, issued_at = clock_timestamp(), expires_at = $3
where c.identity = $1 and c.key = $4 and c.revoked_at is null and c.expires_at > clock_timestamp() - interval '30 days'
