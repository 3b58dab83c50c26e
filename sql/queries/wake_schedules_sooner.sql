-- Other times for schedules that are still as they were seen. Due times in the future that they were triggered for ($6 and $7: one row for
-- each) are added to those that are known.
with early as materialized (
    select e.schedule_id, array_agg(e.due_at) as due_ats
    from unnest($6::bigint[], $7::timestamptz[]) as e(schedule_id, due_at)
    group by e.schedule_id)
update pcfarm.schedule_next x set due_at = n.due_at, wake_at = n.wake_at,
    early = (select array_agg(distinct a.due_at order by a.due_at) from unnest(x.early || e.due_ats) as a(due_at))
from unnest($1::bigint[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[])
    as n(schedule_id, sequence, seen, due_at, wake_at)
left join early e on e.schedule_id = n.schedule_id
where x.schedule_id = n.schedule_id and x.sequence = n.sequence and x.wake_at = n.seen
returning x.schedule_id
