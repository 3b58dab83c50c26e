-- What a schedule has triggered, the newest first, and what has become of it.
select t.sequence, t.due_at, t.triggered_at, t.job_id, t.problem_id, t.refusal, t.server_id, j.state as job_state, r.failed,
    coalesce(r.message, l.message) as message
from pcfarm.schedule_triggers($1, $2, $3) t
left join pcfarm.job j on j.job_id = t.job_id
left join pcfarm.result r on r.job_id = t.job_id and r.problem_id = t.problem_id
left join lateral (
    select l.message from pcfarm.schedule_load l
    where t.problem_id is null and l.job_id = t.job_id and l.loaded_at is null and l.message is not null
    order by l.number limit 1) l on true
order by t.sequence desc
