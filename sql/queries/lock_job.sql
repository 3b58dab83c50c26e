select from pcfarm.job j where j.job_id = $1 for update
