-- Hours since a moment, of one job type ($2) or user ($3) or of all, the newest first.
select s.hour, s.job_type, s.owner::text, s.done, s.failed, s.requeued
from pcfarm.statistic s
where s.hour > $1::timestamptz - interval '1 hour' and ($2::text is null or s.job_type = $2) and ($3::text is null or s.owner = $3)
order by s.hour desc, s.job_type, s.owner
limit $4
