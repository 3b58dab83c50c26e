-- A page of workstations, or those of a list ($4), in id order.
select w.workstation_id, w.hostname, w.state, w.since, w.reason, w.cores, w.memory_bytes, w.system, w.agent_version,
    w.controllers, w.labels, w.system_name, w.arch, w.gpus, w.programs,
    pcfarm.selection_text(w.selection) as selection, w.last_heard, w.server_name, w.drain, w.drained_by, w.drained_since,
    w.drained_why, w.drain_deadline, w.note, w.idle_source, w.power, w.speed_job_type, w.problems_per_second, w.speed_measured_at, w.yields, w.yield_p50_ms, w.yield_p99_ms,
    w.presence, w.presence_wanted, w.asleep, w.can_be_woken, w.woken_at, w.cannot_tell, w.worked_at, w.idle_days,
    w.quarantine ->> 'job_type' as quarantine_job_type, (w.quarantine ->> 'problems')::bigint as quarantine_problems,
    e.jobs as evidence_jobs, e.problems as evidence_problems, e.messages as evidence_messages, e.solved_on as evidence_solved_on
from pcfarm.workstation_status w
cross join lateral (
    select coalesce(array_agg((v ->> 'job_id')::bigint order by n), '{}') as jobs,
        coalesce(array_agg((v ->> 'problem_id')::bigint order by n), '{}') as problems,
        coalesce(array_agg(coalesce(v ->> 'message', '') order by n), '{}') as messages,
        coalesce(array_agg((v ->> 'solved_on')::bigint order by n), '{}') as solved_on
    from jsonb_array_elements(w.quarantine -> 'evidence') with ordinality as e(v, n)) e
where w.workstation_id > $1 and ($2 or w.state <> 'dead') and ($4::bigint[] is null or w.workstation_id = any ($4))
order by w.workstation_id
limit $3
