select i.info from pcfarm.job_info i where i.job_id = $1
