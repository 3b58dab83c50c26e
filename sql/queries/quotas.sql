-- What users may load, those that are named or all that have a quota, and what they have loaded since it is counted.
select n.owner::text as owner, pcfarm.version_of('quota', n.owner::text) as version, q.period, q.problems, q.cpu_seconds,
    coalesce(u.problems, 0) as used
from (
    select distinct unnest($1::text[])::name as owner
    union
    select q.owner from pcfarm.quota q where $1::text[] is null) n
left join pcfarm.quota q on q.owner = n.owner
left join pcfarm.quota_used u on u.owner = q.owner and u.period = q.period
    and u.since = date_trunc(q.period, clock_timestamp(), 'UTC')
order by n.owner, q.period
limit 20000
