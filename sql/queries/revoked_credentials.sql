-- Of these, those whose certificates are worth nothing any more.
select i.identity from unnest($1::uuid[]) as i(identity)
where not exists (
    select from pcfarm.workstation_credential c where c.identity = i.identity and c.revoked_at is null)
