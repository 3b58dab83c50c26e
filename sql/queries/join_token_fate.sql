-- Whether it would let a workstation in: nothing is used up, and nothing is locked. By the unique index of hashes.
select t.expires_at, t.uses_left, t.revoked_at is not null as revoked, t.expires_at <= clock_timestamp() as expired
from pcfarm.join_token t
where t.hash = $1
