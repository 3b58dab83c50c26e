-- $2: the version that it is meant for.
select pcfarm.delete_profile($1) where pcfarm.expect_version('profile entry', $1::bigint::text, $2)
