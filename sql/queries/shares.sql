-- What users have in the ring, what limits leave them, and what profiles say now.
select s.owner::text, s.job_type, s.allocation, s.prohibited, s.room, null::bigint as weight, null::integer as per_checkout,
    null::integer as priority
from pcfarm.share s
union all
select null, p.job_type, null, false, null, p.room, p.problems_per_checkout, p.priority from pcfarm.profile_now p
