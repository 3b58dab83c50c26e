-- With it all that logins gave is revoked, but for the token that asks ($3).
with changed as (
    update pcfarm.account a set password_hash = $2 where a.user_name = $1::text::name returning a.user_name),
revoked as (
    update pcfarm.api_token t set revoked_at = clock_timestamp()
    from changed c
    where t.user_name = c.user_name and t.by_login and t.revoked_at is null and t.token_id is distinct from $3)
select count(*) from changed
