-- Whether a workstation's certificates are worth anything.
select exists (select from pcfarm.workstation_credential c where c.identity = $1 and c.revoked_at is null)
