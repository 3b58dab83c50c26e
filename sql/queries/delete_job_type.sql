-- $2: the version that it is meant for.
select pcfarm.delete_job_type($1) where pcfarm.expect_version('job type', $1, $2)
