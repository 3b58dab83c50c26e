select r.problem_id from pcfarm.result r where r.job_id = $1 order by r.problem_id desc limit 1
