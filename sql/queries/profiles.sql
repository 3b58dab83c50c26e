-- Of one job type, or of all: an unknown one is an error.
select p.profile_id, p.job_type, p.weekdays, to_char(p.starts, 'HH24:MI') as starts, to_char(p.ends, 'HH24:MI') as ends,
    p.time_zone, p.problems_per_hour, p.problems_per_checkout, p.priority, p.conditions, e.holds, e.reason, e.used,
    pcfarm.version_of('profile entry', p.profile_id::text) as version
from (select $1::text as name where $1 <> '' union select o.job_type from pcfarm.profile o where $1 = '') t
cross join lateral pcfarm.explain_profile(t.name, coalesce($2, clock_timestamp())) with ordinality
    as e(profile_id, entry, holds, reason, problems_per_hour, used, problems_per_checkout, priority, n)
join pcfarm.profile p on p.profile_id = e.profile_id
order by t.name, e.n
limit 10000
