-- For who has locked their rows in pcfarm.schedule_next: so these are of the versions seen there.
select s.schedule_id, s.owner, s.name, s.description, s.recurrence, s.time_zone, s.starts_at, s.ends_at, s.enabled, s.catch_up,
    s.catch_up_limit, s.jitter_ms, null::jsonb as payload, s.job_id, null::jsonb as template, s.version, s.anchored_at, s.error,
    s.created_at, s.changed_at
from pcfarm.schedule s
where s.schedule_id = any ($1)
