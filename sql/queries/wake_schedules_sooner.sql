-- Other times for schedules that are still as they were seen.
update pcfarm.schedule_next x set due_at = n.due_at, wake_at = n.wake_at
from unnest($1::bigint[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[])
    as n(schedule_id, sequence, seen, due_at, wake_at)
where x.schedule_id = n.schedule_id and x.sequence = n.sequence and x.wake_at = n.seen
returning x.schedule_id
