-- Views for people, and the roles that may use them.

create view pcfarm.queue_pointer as
select l.job_id, j.name as job_name, j.state as job_state, l.lane_id, l.kind, l.job_type,
    coalesce(p.to_order, 0) as next_extraction,
    case l.kind when 'retry' then coalesce(r.batch_order + 1, 0) else l.next_insertion end as next_insertion,
    l.problems
from pcfarm.lane l
join pcfarm.job j on j.job_id = l.job_id
left join lateral (select c.to_order from pcfarm.checkout c
    where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1) p on true
left join lateral (select r.batch_order from pcfarm.requeued r
    where r.job_id = l.job_id and r.lane_id = l.lane_id order by r.batch_order desc limit 1) r on l.kind = 'retry';
comment on view pcfarm.queue_pointer is
    'Each lane''s two numbers: the next batch order to hand out and the next one to assign.';

create view pcfarm.in_progress as
select c.job_id, j.name as job_name, c.job_type, c.checkout_id, c.lane_id, c.from_order, c.to_order, c.problems,
    c.workstation_id, w.hostname, c.checked_out_at as since, c.deadline
from pcfarm.checkout c
join pcfarm.job j on j.job_id = c.job_id
left join pcfarm.workstation w on w.workstation_id = c.workstation_id
where c.ended_at is null and c.job_id > 0;
comment on view pcfarm.in_progress is
    'Checkouts handed out and not ended, prefetched ones included. to_order is exclusive.';

create view pcfarm.workstation_status as
select w.workstation_id, w.hostname,
    case when w.state = 'waiting' and h.checkouts > 0 then 'processing' else w.state end as state,
    greatest(w.since, case when w.state = 'waiting' then h.oldest end) as since,
    case when w.state = 'waiting' and h.checkouts > 0 then 'crunches what it holds'
         when w.state = 'waiting' and w.silent_since is not null then 'not heard of; dead when the lease is over'
         when w.state = 'waiting' then 'no work for it' else w.reason end as reason,
    h.job_ids, h.batch_orders, coalesce(h.checkouts, 0) as checkouts, coalesce(h.problems, 0) as problems,
    w.cores, w.memory_bytes, w.system, w.agent_version, w.controllers, w.registered_at, w.connected_at,
    coalesce(w.silent_since, s.heard_at) as last_heard, w.server_id, s.name as server_name
from pcfarm.workstation w
left join pcfarm.server s on s.server_id = w.server_id
left join lateral (
    select count(*) as checkouts, sum(c.problems) as problems, min(c.checked_out_at) as oldest,
        array_agg(distinct c.job_id) as job_ids,
        string_agg(format('%s:%s..%s', c.job_id, c.from_order, c.to_order - 1), ' ' order by c.checkout_id) as batch_orders
    from pcfarm.checkout c
    where c.workstation_id = w.workstation_id and c.ended_at is null) h on true;
comment on view pcfarm.workstation_status is
    'What each workstation is doing, since when and why; batch_orders reads job:first..last.';

create view pcfarm.job_progress as
select j.job_id, j.name, j.title, j.job_type, j.owner, j.state, j.priority, j.deadline, j.created_at, j.opened_at, j.ended_at,
    n.problems, d.done, d.failed,
    case when j.state = 'cancelled' then 0 else least(i.problems, n.problems - d.done - d.failed) end as in_progress,
    case when j.state = 'cancelled' then 0 else greatest(0, n.problems - d.done - d.failed - i.problems) end as waiting,
    case when j.state = 'cancelled' then n.problems - d.done - d.failed else 0 end as cancelled,
    d.requeued,
    case when n.problems > 0 then round(100.0 * (d.done + d.failed) / n.problems, 1) end as percent
from pcfarm.job j
cross join lateral (select coalesce(sum(l.problems), 0)::bigint as problems from pcfarm.lane l where l.job_id = j.job_id) n
cross join lateral (select coalesce(sum(p.done), 0)::bigint as done, coalesce(sum(p.failed), 0)::bigint as failed,
    coalesce(sum(p.requeued), 0)::bigint as requeued from pcfarm.progress p where p.job_id = j.job_id) d
-- What a live checkout has delivered in part counts as done, not as in progress.
cross join lateral (select coalesce(sum(c.problems - c.delivered), 0)::bigint as problems from pcfarm.checkout c
    where c.job_id = j.job_id and c.ended_at is null) i;
comment on view pcfarm.job_progress is
    'Counts per job, kept by every transaction that changes them: nothing is counted here. Problems copied with '
    'orders of one''s own count from open_job on.';

-- The dispatcher's order: priority, then earliest deadline, then age.
create view pcfarm.jobs_ordered as
select row_number() over (order by j.priority desc, j.deadline asc nulls last, j.job_id) as position,
    j.job_id, j.name, j.job_type, j.owner, j.state, j.priority, j.deadline, j.not_before
from pcfarm.job j
where j.state = 'open' and coalesce(j.not_before, '-infinity') <= now();
comment on view pcfarm.jobs_ordered is 'Jobs that may be handed out now, in the order in which the dispatcher serves them.';

-- Within a job: load lanes in order, the retry lane last, or first if the job type says so.
create view pcfarm.problems_ordered as
with lane as (
    select o.position as job_position, p.job_id, p.lane_id, p.job_type, p.next_extraction,
        case when p.kind = 'retry' then case when t.retry_first then 0 else 2 end else 1 end as lane_rank
    from pcfarm.queue_pointer p
    join pcfarm.jobs_ordered o on o.job_id = p.job_id
    join pcfarm.job_type t on t.name = p.job_type
    where p.next_extraction < p.next_insertion)
select l.job_position, l.lane_rank, l.job_id, l.lane_id, p.batch_order, p.problem_id, p.key, l.job_type, 0 as attempts
from lane l
join pcfarm.problem p on p.job_id = l.job_id and p.lane_id = l.lane_id and p.batch_order >= l.next_extraction
union all
select l.job_position, l.lane_rank, l.job_id, l.lane_id, r.batch_order, r.problem_id, p.key, l.job_type, r.attempts
from lane l
join pcfarm.requeued r on r.job_id = l.job_id and r.lane_id = l.lane_id and r.batch_order >= l.next_extraction
join pcfarm.problem p on p.job_id = r.job_id and p.lane_id = r.home_lane and p.batch_order = r.home_order
    and p.problem_id = r.problem_id;
comment on view pcfarm.problems_ordered is
    'Problems that wait, with what orders them: order by job_position, lane_rank, lane_id, batch_order, problem_id.';

create view pcfarm.job_problems as
select p.job_id, p.problem_id, p.key, coalesce(l.job_type, j.job_type) as job_type,
    case when r.failed then 'failed' when r.problem_id is not null then 'done'
         when j.state = 'cancelled' then 'cancelled'
         when c.checkout_id is not null then 'in_progress'
         else 'waiting' end as state,
    coalesce(r.attempts, q.attempts, 0) as attempts,
    coalesce(r.message, q.message) as message,
    coalesce(r.checkout_id, c.checkout_id) as checkout_id,
    coalesce(rc.workstation_id, c.workstation_id) as workstation_id,
    p.payload, r.solution as result
from pcfarm.problem p
join pcfarm.job j on j.job_id = p.job_id
left join pcfarm.lane l on l.job_id = p.job_id and l.lane_id = p.lane_id
left join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id
left join pcfarm.checkout rc on rc.checkout_id = r.checkout_id
left join lateral (
    select q.lane_id, q.batch_order, q.attempts, q.message from pcfarm.requeued q
    where q.job_id = p.job_id and q.problem_id = p.problem_id
    order by q.batch_order desc limit 1) q on true
left join pcfarm.checkout c on r.problem_id is null and c.ended_at is null and c.job_id = p.job_id
    and c.lane_id = coalesce(q.lane_id, p.lane_id)
    and c.from_order <= coalesce(q.batch_order, p.batch_order) and coalesce(q.batch_order, p.batch_order) < c.to_order;
comment on view pcfarm.job_problems is
    'Every problem of every job, with its state, attempts, message and result. Name a job_id: the view is as long as '
    'the job.';

-- Roles -------------------------------------------------------------------------------------------------------

do $$
begin
    -- Roles belong to the whole cluster: another database may have made them already.
    begin
        create role pcfarm_loader nologin;
    exception
        when duplicate_object or unique_violation then null;
        when insufficient_privilege then
            raise warning 'role pcfarm_loader was not created: the migrating role lacks CREATEROLE'
                using hint = 'create role pcfarm_loader nologin; as a superuser, then grant as in docs/administration.md.';
            return;
    end;
    grant usage on schema pcfarm to pcfarm_loader;
    grant select on pcfarm.job_type, pcfarm.related_read, pcfarm.job, pcfarm.lane, pcfarm.problem, pcfarm.requeued,
        pcfarm.result, pcfarm.queue_pointer, pcfarm.in_progress, pcfarm.workstation_status, pcfarm.job_progress,
        pcfarm.jobs_ordered, pcfarm.problems_ordered, pcfarm.job_problems to pcfarm_loader;
    grant insert, update (batch_order) on pcfarm.problem to pcfarm_loader;
    grant usage on sequence pcfarm.problem_number, pcfarm.lane_number to pcfarm_loader;
end $$;

-- What nobody calls by hand is nobody's to call; loaders may do the rest.
do $$
declare
    f record;
begin
    for f in
        select p.oid::regprocedure as signature, p.proname
        from pg_proc p where p.pronamespace = 'pcfarm'::regnamespace and p.prokind in ('f', 'a')
    loop
        execute format('revoke all on routine %s from public', f.signature);
        if f.proname in ('create_job', 'load', 'submit', 'assign_batch_order', 'open_job', 'hold_job', 'release_job',
                'cancel_job', 'retry_job', 'rerun_job', 'check_loadable', 'load_columns', 'register_lane',
                'lock_for_loading', 'convoy_must_be_sensible', 'job_type_must_exist', 'no_such_job', 'pack',
                'pack_step', 'pack_staged', 'convoy_is_too_large', 'analyze_after_load')
            and exists (select from pg_roles where rolname = 'pcfarm_loader')
        then
            execute format('grant execute on routine %s to pcfarm_loader', f.signature);
        end if;
    end loop;
end $$;
