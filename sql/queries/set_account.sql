-- What is null stays as it is. $4: the version that it is meant for.
update pcfarm.account a set
    role = coalesce($2, a.role),
    disabled_at = case when $3::boolean then coalesce(a.disabled_at, clock_timestamp())
        when not $3::boolean then null else a.disabled_at end
from (select pcfarm.expect_version('account', $1::text, $4::text) as as_expected offset 0) e
where e.as_expected and a.user_name = $1::text::name
