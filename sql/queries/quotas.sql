-- What a user may load, and what it has loaded since it is counted.
select q.period, q.problems, q.cpu_seconds, coalesce(u.problems, 0) as used
from pcfarm.quota q
left join pcfarm.quota_used u on u.owner = q.owner and u.period = q.period
    and u.since = date_trunc(q.period, clock_timestamp(), 'UTC')
where q.owner = $1::text
order by q.period
