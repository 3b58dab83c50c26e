-- $4: the version that it is meant for.
select pcfarm.set_job_type($1, $2, $3) where pcfarm.expect_version('job type', $1, $4)
