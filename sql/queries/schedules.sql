-- By owner and name, from a place on. A condition that is null is none.
select s.schedule_id, s.owner, s.name, s.description, s.recurrence, s.time_zone, s.starts_at, s.ends_at, s.enabled, s.catch_up,
    s.catch_up_limit, s.jitter_ms, s.payload, s.job_id, s.template, s.version, s.anchored_at, s.error, s.created_at, s.changed_at,
    x.sequence, x.due_at, x.wake_at, x.last_due_at, x.last_triggered_at, j.unique_key as job_key, clock_timestamp() as now
from pcfarm.schedule s
join pcfarm.schedule_next x on x.schedule_id = s.schedule_id
left join pcfarm.job j on j.job_id = s.job_id
where (s.owner = $1::text or $1::text is null)
    and (s.schedule_id = $2 or $2::bigint is null)
    and (s.name = $3 or $3::text is null)
    and (starts_with(s.name, $4) or $4::text is null)
    and (s.job_id = $5 or $5::bigint is null)
    and ($6::text is null or $6 = case when s.error is not null then 'broken' when not s.enabled then 'disabled'
        when x.due_at is null and x.wake_at is null then 'ended' else 'active' end)
    and ($7::text is null or (s.owner, s.name) > ($7::text::name, $8::text))
order by s.owner, s.name
limit $9
