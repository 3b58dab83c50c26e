-- The newest first: of a user or of all, one of them, those that hold or all.
select t.token_id, t.user_name::text as user_name, t.name, t.scopes, t.created_at, t.expires_at, t.revoked_at,
    t.last_used_on::text as last_used_on
from pcfarm.api_token t
where ($1::text is null or t.user_name = $1::text::name) and ($2::bigint is null or t.token_id = $2)
    and ($3 or t.revoked_at is null and (t.expires_at is null or t.expires_at > clock_timestamp()))
order by t.token_id desc
limit 1000
