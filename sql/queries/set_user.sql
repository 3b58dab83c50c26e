-- $3: the version that it is meant for.
select pcfarm.set_user($1::text[]::name[], $2)
from (select bool_and(pcfarm.expect_version('user', n, $3)) as as_expected from unnest($1::text[]) n) e
where e.as_expected
