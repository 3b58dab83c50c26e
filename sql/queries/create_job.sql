select pcfarm.create_job($1, $2, $3::jsonb)
