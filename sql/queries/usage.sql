-- Days since one, of a user or of all, the newest first.
select u.day::text as day, u.owner::text as owner, u.done, u.failed, u.requeued, u.cpu_seconds, u.triggers
from pcfarm.usage u
where u.day >= $1::text::date and ($2::text is null or u.owner = $2)
order by u.day desc, u.owner
limit 10000
