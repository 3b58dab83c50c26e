-- The newest first, or one of them.
select t.join_token_id, t.created_by::text as created_by, t.created_at, t.expires_at, t.uses_left, t.used, t.revoked_at
from pcfarm.join_token t
where $1::bigint is null or t.join_token_id = $1
order by t.join_token_id desc
limit 1000
