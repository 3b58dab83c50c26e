-- By host name, or one of them.
select c.identity, c.hostname, c.joined_at, c.issued_at, c.expires_at, c.revoked_at, w.workstation_id
from pcfarm.workstation_credential c
left join pcfarm.workstation w on w.identity = c.identity
where $1::uuid is null or c.identity = $1
order by c.hostname, c.identity
limit 20000
