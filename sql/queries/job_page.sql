-- A page of jobs from the newest, of everybody or of one user ($4): all by a key, or those that have not ended by their
-- partial index. One of the four is read.
(select j.job_id from pcfarm.job j
    where $1 and $4::text is null and j.job_id < $2 order by j.job_id desc limit $3)
union all
(select j.job_id from pcfarm.job j
    where not $1 and $4::text is null and j.ended_at is null and j.job_id < $2 order by j.job_id desc limit $3)
union all
(select j.job_id from pcfarm.job j
    where $1 and j.owner = $4::text::name and j.job_id < $2 order by j.job_id desc limit $3)
union all
(select j.job_id from pcfarm.job j
    where not $1 and j.owner = $4::text::name and j.ended_at is null and j.job_id < $2 order by j.job_id desc limit $3)
order by job_id desc
