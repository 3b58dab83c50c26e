-- Schedules that are not due, those that wait the longest first: $3 of them that come behind a place ($1, $2). None while the clock is
-- behind, because all of them seem to wait for too long then.
select clock_timestamp() as now, x.schedule_id, x.sequence, x.due_at, x.wake_at
from pcfarm.schedule_next x
where not (select pcfarm.clock_is_behind()) and x.wake_at > clock_timestamp() and x.wake_at <= coalesce($1::timestamptz, 'infinity')
    and ($1 is null or (x.wake_at, x.schedule_id) < ($1, $2::bigint))
order by x.wake_at desc, x.schedule_id desc
limit $3
