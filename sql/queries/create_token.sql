-- By its user's own token ($7) it ends no later than that one, and by default with it. No row: that one ends before, or was
-- revoked: its row is locked, so that its revocation, which revokes what it has made, comes before or after.
with maker as materialized (
    select t.token_id, t.expires_at from pcfarm.api_token t where t.token_id = $7 and t.revoked_at is null for share),
asked as (select clock_timestamp() + $6::float8 * interval '1 second' as expires_at)
insert into pcfarm.api_token (user_name, name, hash, scopes, by_login, made_by, expires_at)
select $1::text::name, $2, $3, $4, $5, m.token_id, least(a.expires_at, m.expires_at)
from asked a left join maker m on true
where $7::bigint is null or m.token_id is not null and coalesce(a.expires_at <= m.expires_at, true)
returning token_id
