-- The load that has waited longest, for nobody else until its time limit and a minute are over. Jobs that people have opened,
-- cancelled or forgotten need it no more.
with due as (
    select l.job_id, l.number from pcfarm.schedule_load l
    where l.loaded_at is null and l.next_attempt_at <= now()
    order by l.next_attempt_at
    limit 1
    for update skip locked)
update pcfarm.schedule_load l
set attempts = l.attempts + 1,
    next_attempt_at = case when j.state = 'loading' then clock_timestamp() + l.time_limit + interval '1 minute' end,
    message = case when j.state = 'loading' then l.message else 'the job is ' || coalesce(j.state, 'gone') || ': nothing was loaded' end
from due d
left join pcfarm.job j on j.job_id = d.job_id
left join pcfarm.job_type t on t.name = j.job_type
where l.job_id = d.job_id and l.number = d.number
returning l.job_id, l.number, l.due_at, l.query, l.convoy, extract(epoch from l.time_limit)::float8 as time_limit, l.attempts,
    coalesce(j.state = 'loading', false) as wanted, t.read_role::text as read_role,
    j.trace_parent
