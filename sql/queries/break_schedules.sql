-- Of these nobody can say when they come: they rest until somebody changes them.
with broken as (
    update pcfarm.schedule s set error = b.error
    from unnest($1::bigint[], $2::text[]) as b(schedule_id, error)
    where s.schedule_id = b.schedule_id)
update pcfarm.schedule_next x set due_at = null, wake_at = null where x.schedule_id = any ($1)
