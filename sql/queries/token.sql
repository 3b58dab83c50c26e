-- Who shows this token, while it holds. The day of its last use is written once a day.
with found as materialized (
    select t.token_id, t.user_name::text as user_name, a.role, t.scopes, t.last_used_on
    from pcfarm.api_token t
    join pcfarm.account a on a.user_name = t.user_name
    where t.hash = $1 and t.revoked_at is null and a.disabled_at is null
        and (t.expires_at is null or t.expires_at > clock_timestamp())),
used as (
    update pcfarm.api_token t set last_used_on = current_date
    from found f
    where t.token_id = f.token_id and f.last_used_on is distinct from current_date)
select f.token_id, f.user_name, f.role, f.scopes from found f
