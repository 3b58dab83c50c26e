select j.job_id, j.owner::text from pcfarm.job j where j.job_id = any ($1)
