-- By name, one of them if it is named.
select a.user_name::text as user_name, a.role, a.password_hash is not null as has_password, a.created_at, a.disabled_at,
    (select count(*) from pcfarm.api_token t where t.user_name = a.user_name and t.revoked_at is null
        and (t.expires_at is null or t.expires_at > clock_timestamp())) as tokens,
    pcfarm.version_of('account', a.user_name::text) as version
from pcfarm.account a
where $1::text is null or a.user_name = $1::text::name
order by a.user_name
limit 10000
