-- $4: the version that it is meant for.
select pcfarm.set_quotas($1::text[]::name[], $2, $3)
from (select bool_and(pcfarm.expect_version('quota', n, $4)) as as_expected from unnest($1::text[]) n) e
where e.as_expected
