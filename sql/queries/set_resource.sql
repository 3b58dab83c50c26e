-- $4: the version that it is meant for.
select pcfarm.set_resource($1, $2, $3) where pcfarm.expect_version('resource', $1, $4)
