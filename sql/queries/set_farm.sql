-- $2: the version that it is meant for.
select pcfarm.set_farm($1) where pcfarm.expect_version('defaults', '', $2)
