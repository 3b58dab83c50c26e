-- A page of jobs from the newest: all by the primary key, or those that have not ended by their partial index.
(select j.job_id from pcfarm.job j where $1 and j.job_id < $2 order by j.job_id desc limit $3)
union all
(select j.job_id from pcfarm.job j where not $1 and j.ended_at is null and j.job_id < $2 order by j.job_id desc limit $3)
order by job_id desc
