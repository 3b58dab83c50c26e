-- $4: the version that it is meant for, of all limits of the user.
select pcfarm.set_user_job_type($1::text[]::name[], $2, $3)
from (select bool_and(pcfarm.expect_version('user', n, $4)) as as_expected from unnest($1::text[]) n) e
where e.as_expected
