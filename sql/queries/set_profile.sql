-- $4: the version that it is meant for.
select pcfarm.set_profile($1, $2, $3)
where $3::bigint is null or pcfarm.expect_version('profile entry', $3::bigint::text, $4)
