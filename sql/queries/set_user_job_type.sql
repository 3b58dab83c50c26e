select pcfarm.set_user_job_type($1::text[]::name[], $2, $3)
