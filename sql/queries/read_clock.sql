-- The clock as people see it.
select clock_timestamp() as now, c.checked_at, c.unproven_since, c.step_until, c.difference_until, c.stored_until, c.step_seconds,
    c.difference_seconds, c.difference_server, c.newest, c.accepted_by::text as accepted_by, c.accepted_at
from pcfarm.clock c
