-- The newest jobs before one, of those that have not ended.
select j.job_id from pcfarm.job j where j.ended_at is null and j.job_id < $1 order by j.job_id desc limit $2
