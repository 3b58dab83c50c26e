-- Time zones of schedules and digests.
select distinct z.name from (
    select s.time_zone as name from pcfarm.schedule s
    union all select s.time_zone from pcfarm.subscription s where s.next_digest_at is not null) z
order by z.name limit 200
