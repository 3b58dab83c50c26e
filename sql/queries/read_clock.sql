-- The clock as people see it.
select clock_timestamp() as now, pcfarm.clock_is_proven() as proven, pcfarm.clock_is_watched() as watched,
    pcfarm.time_limits_hold() as time_limits_hold, c.checked_at, c.unproven_since, c.step_until, c.difference_until, c.stored_until, c.step_seconds,
    c.difference_seconds, c.difference_server, c.newest, c.accepted_by::text as accepted_by, c.accepted_at
from pcfarm.clock c
