select j.state from pcfarm.job j where j.job_id = $1
