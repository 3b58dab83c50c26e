-- When something is due next, and the time now. The index's first entry from $1 on.
select clock_timestamp() as now, (
    select x.wake_at from pcfarm.schedule_next x where x.wake_at > $1 order by x.wake_at limit 1) as wake_at
