-- What a trigger has enqueued is there, and says so; unless its job has been forgotten.
select k.tick_id, u.schedule_id, u.sequence, p.key
from pcfarm.schedule_tick k
cross join lateral unnest(k.schedule_ids, k.sequences, k.due_ats, k.job_ids, k.problem_ids)
    as u(schedule_id, sequence, due_at, job_id, problem_id)
join pcfarm.job j on j.job_id = u.job_id
left join pcfarm.problem p on p.job_id = u.job_id and p.lane_id = u.problem_id / 10000000000 and p.problem_id = u.problem_id
where u.problem_id is not null and (p.payload ->> 'sequence')::bigint is distinct from u.sequence
