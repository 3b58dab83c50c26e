-- Who has these tokens, of those that hold.
select t.token_id, t.user_name::text as user_name, a.role, t.scopes
from pcfarm.api_token t
join pcfarm.account a on a.user_name = t.user_name
where t.token_id = any($1::bigint[]) and t.revoked_at is null and a.disabled_at is null
    and (t.expires_at is null or t.expires_at > clock_timestamp())
