-- The oldest ticks, a thousand at most, that are older than $1 seconds.
delete from pcfarm.schedule_tick t
where t.tick_id in (select o.tick_id from pcfarm.schedule_tick o order by o.tick_id limit 1000)
    and t.ticked_at < clock_timestamp() - make_interval(secs => $1) and (select pcfarm.clock_is_proven())
