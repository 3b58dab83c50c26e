-- How late what has not ended is.
select count(*) as jobs, coalesce(extract(epoch from clock_timestamp() - min(j.deadline)), 0)::float8 as seconds
from pcfarm.job j
where j.ended_at is null and j.state in ('open', 'held') and j.deadline < clock_timestamp()
