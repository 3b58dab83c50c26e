-- Views for people, and the roles that may use them.

create view pcfarm.queue_pointer as
select l.job_id, j.name as job_name, j.state as job_state, l.lane_id, l.kind, l.job_type,
    case l.kind when 'later' then l.next_insertion else coalesce(p.to_order, 0) end as next_extraction,
    case l.kind when 'retry' then greatest(r.batch_order + 1, p.to_order, 0) else l.next_insertion end as next_insertion,
    l.problems, l.priority, l.parked
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
    case when p.lost then 'lost' when w.state in ('offline', 'dead') or p.present then
        case when w.state = 'waiting' and h.checkouts > 0 then 'processing' else w.state end else 'offline' end as state,
    case when p.lost then w.silent_since else greatest(w.since, case when w.state = 'waiting' then h.oldest end) end as since,
    -- A lost connection is shown at once, as a state of this view alone. The table keeps its state: the lease decides what becomes of the
    -- work.
    concat_ws('; ', case when not p.present then null
            when w.silent_since is not null then format('%s %s s ago', case when w.disconnected then 'connection lost' else 'last heard' end,
                greatest(0, floor(extract(epoch from clock_timestamp() - w.silent_since)))::bigint)
            when s.heard_at < clock_timestamp() - interval '10 seconds' then format('its server was last heard %s s ago',
                floor(extract(epoch from clock_timestamp() - s.heard_at))::bigint) end,
        case when p.lost and h.checkouts > 0 and w.state = 'waiting' then 'holds what it had'
            when w.state = 'waiting' and h.checkouts > 0 then
                coalesce(nullif(w.reason, ''), case when w.silent_since is null then 'crunches what it holds' else 'holds what it had' end)
            when w.state = 'waiting' and w.silent_since is not null then 'dead when the lease is over'
            when w.state = 'waiting' then 'no work for it'
            when p.lost and w.reason <> '' then format('was %s: %s', w.state, w.reason)
            else nullif(w.reason, '') end) as reason,
    h.job_ids, h.batch_orders, coalesce(h.checkouts, 0) as checkouts, coalesce(h.problems, 0) as problems,
    w.cores, w.memory_bytes, w.system, w.system_name, w.arch, w.gpus, w.programs, w.agent_version, w.controllers, w.labels, z.selection, w.registered_at, w.connected_at,
    coalesce(w.silent_since, s.heard_at) as last_heard, w.server_id, s.name as server_name,
    w.drain, w.drained_by, w.drained_since, w.drained_why, w.drain_deadline, w.quarantine, w.note, w.idle_source, w.power,
    v.job_type as speed_job_type, v.problems_per_second, v.measured_at as speed_measured_at,
    w.yields, w.yield_p50_ms, w.yield_p99_ms, w.presence, r.wanted as presence_wanted,
    w.asleep, w.wake_card is not null as can_be_woken, w.woken_at,
    p.present and w.silent_since is not null as unheard, p.lost as connection_lost,
    p.present and not p.lost and w.state = 'suspended' and w.idle_source = 'none' as cannot_tell, w.cannot_tell_since,
    k.worked_at, p.present and coalesce(k.told, false) as without_work, case when k.told then k.idle_days else 0 end as idle_days
from pcfarm.workstation w
-- One that sleeps is offline as soon as it is silent.
cross join lateral (
    select n.present, n.present and w.silent_since is not null and w.disconnected as lost
    from (select w.state not in ('offline', 'dead') and not (w.asleep and w.silent_since is not null) as present) n) p
left join pcfarm.workstation_record k on k.workstation_id = w.workstation_id
left join pcfarm.workstation_speed v on v.workstation_id = w.workstation_id
left join pcfarm.server s on s.server_id = w.server_id
left join pcfarm.selection z on z.hostname = w.hostname
left join pcfarm.presence r on r.hostname = w.hostname
left join lateral (
    select count(*) as checkouts, sum(c.problems) as problems, min(c.checked_out_at) as oldest,
        array_agg(distinct c.job_id) as job_ids,
        string_agg(format('%s:%s..%s', c.job_id, c.from_order, c.to_order - 1), ' ' order by c.checkout_id) as batch_orders
    from pcfarm.checkout c
    where c.workstation_id = w.workstation_id and c.ended_at is null) h on true;
comment on view pcfarm.workstation_status is
    'What each workstation is doing, since when and why; batch_orders reads job:first..last. State lost: its connection has '
    'ended without a goodbye, and its lease runs.';

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

-- The dispatcher's order. Of one priority users take turns: in a round each gets its allocation of them, and who has had
-- the fewest is next. A user has its jobs served by deadline, then age.
create view pcfarm.jobs_ordered as
with job as (
    select j.job_id, j.name, j.job_type, j.owner, j.state, coalesce(p.priority, j.priority) as priority, j.deadline,
        j.not_before, coalesce(own.allocation, u.allocation, f.allocation) as allocation,
        -- What a user has of a job type may have a place of its own.
        case when own.allocation is not null then j.job_type collate "C" end as place
    from pcfarm.job j
    cross join pcfarm.farm f
    join pcfarm.job_type t on t.name = j.job_type and t.suspended_since is null
    left join pcfarm.farm_user u on u.name = j.owner
    left join pcfarm.user_job_type own on own.user_name = j.owner and own.job_type = j.job_type
    left join pcfarm.profile_now p on p.job_type = j.job_type
    where j.ended_at is null and j.state = 'open' and coalesce(j.not_before, '-infinity') <= now()
        and f.suspended_since is null and not coalesce(u.prohibited, false)
        and not exists (select from pcfarm.waits_for(j.job_id))
        and exists (
            select from pcfarm.queue_pointer q
            join pcfarm.job_type o on o.name = q.job_type and o.suspended_since is null
            where q.job_id = j.job_id and not q.parked and q.next_extraction < q.next_insertion)),
turn as (
    select j.*, row_number() over (partition by j.priority, j.owner, j.place order by j.deadline nulls last, j.job_id) - 1 as turn
    from job j where j.allocation > 0)
select row_number() over (order by t.priority desc, t.turn / t.allocation, t.turn % t.allocation, t.owner, t.place nulls first,
        t.job_id) as position,
    t.job_id, t.name, t.job_type, t.owner, t.state, t.priority, t.deadline, t.not_before
from turn t;
comment on view pcfarm.jobs_ordered is
    'Jobs that have something to hand out and may, in the order in which the dispatcher serves them first: by priority (what a '
    'profile says before what the job says), then in turns of their users, of each by deadline and age.';

-- Within a job: by their problems' priority, then load lanes in order and the retry lane last, or first if the job type
-- says so.
create view pcfarm.problems_ordered as
with lane as (
    select o.position as job_position, p.job_id, p.priority, p.lane_id, p.job_type, p.next_extraction, p.next_insertion,
        case when p.kind = 'retry' then case when t.retry_first then 0 else 2 end else 1 end as lane_rank
    from pcfarm.queue_pointer p
    join pcfarm.jobs_ordered o on o.job_id = p.job_id
    join pcfarm.job_type t on t.name = p.job_type and t.suspended_since is null
    where not p.parked and p.next_extraction < p.next_insertion)
select l.job_position, l.priority, l.lane_rank, l.job_id, l.lane_id, p.batch_order, p.problem_id, p.key, l.job_type,
    0 as attempts
from lane l
cross join lateral (
    select p.* from pcfarm.problem p
    where p.job_id = l.job_id and p.lane_id = l.lane_id
        and p.batch_order >= l.next_extraction and p.batch_order < l.next_insertion
    order by p.batch_order, p.problem_id offset 0) p
union all
select l.job_position, l.priority, l.lane_rank, l.job_id, l.lane_id, r.batch_order, r.problem_id, p.key, l.job_type,
    r.attempts
from lane l
cross join lateral (
    select r.* from pcfarm.requeued r
    where r.job_id = l.job_id and r.lane_id = l.lane_id
        and r.batch_order >= l.next_extraction and r.batch_order < l.next_insertion
    order by r.batch_order, r.problem_id offset 0) r
cross join lateral (
    select p.key from pcfarm.problem p
    where p.job_id = r.job_id and p.lane_id = r.home_lane and p.batch_order = r.home_order and p.problem_id = r.problem_id
    offset 0) p;
comment on view pcfarm.problems_ordered is
    'Problems that wait and may be handed out, with what orders them: order by job_position, priority desc, lane_rank, '
    'lane_id, batch_order, problem_id.';

create view pcfarm.job_problems as
select p.job_id, p.problem_id, p.key, coalesce(l.job_type, j.job_type) as job_type,
    case when r.failed then 'failed' when r.problem_id is not null then 'done'
         when j.state = 'cancelled' then 'cancelled'
         when c.checkout_id is not null then 'in_progress'
         else 'waiting' end as state,
    coalesce(r.attempts, d.attempts, q.attempts, 0) as attempts,
    coalesce(r.message, d.message, q.message, 'not before ' || d.due_at) as message,
    coalesce(r.checkout_id, c.checkout_id) as checkout_id,
    coalesce(rc.workstation_id, c.workstation_id) as workstation_id,
    p.payload, r.solution as result
from pcfarm.problem p
join pcfarm.job j on j.job_id = p.job_id
-- Each row is looked up by its key, because the planner's statistics may not know the job yet.
left join lateral (
    select l.job_type from pcfarm.lane l where l.job_id = p.job_id and l.lane_id = p.lane_id offset 0) l on true
left join lateral (
    select r.* from pcfarm.result r where r.job_id = p.job_id and r.problem_id = p.problem_id offset 0) r on true
left join lateral (
    select c.workstation_id from pcfarm.checkout c where c.checkout_id = r.checkout_id offset 0) rc on true
left join lateral (
    select q.lane_id, q.batch_order, q.attempts, q.message from pcfarm.requeued q
    where q.job_id = p.job_id and q.problem_id = p.problem_id
    order by q.batch_order desc limit 1) q on true
left join lateral (
    select d.* from pcfarm.delayed d where d.job_id = p.job_id and d.problem_id = p.problem_id offset 0) d on true
-- Checkouts of a lane do not overlap: the last one that begins at the problem or before it is the only one that may hold it.
left join lateral (
    select c.* from pcfarm.checkout c
    where c.job_id = p.job_id and c.lane_id = coalesce(q.lane_id, p.lane_id)
        and c.from_order <= coalesce(q.batch_order, p.batch_order)
    order by c.from_order desc limit 1) c
    on r.problem_id is null and c.ended_at is null and coalesce(q.batch_order, p.batch_order) < c.to_order;
comment on view pcfarm.job_problems is
    'Every problem of every job, with its state, attempts, message and result. Name a job_id: the view is as long as '
    'the job.';

-- Why a job of which something waits is not handed out, or not faster, beside its state and who could run it; each with what
-- would change that.
create function pcfarm.job_obstacles(job bigint)
returns setof text language sql stable as $$
    with of_job as (select j.* from pcfarm.job j where j.job_id = job and j.ended_at is null),
    lane as (
        select q.lane_id, q.job_type, q.parked, q.next_extraction, q.next_extraction < q.next_insertion as has_work
        from pcfarm.queue_pointer q
        where q.job_id = job),
    -- Limits of its problems' types and of its own hold.
    job_type as (
        select distinct t.name as job_type from lane l cross join of_job j cross join unnest(array[l.job_type, j.job_type]) t(name)
        where l.has_work),
    -- What each lane hands out next.
    first_convoy as materialized (
        select l.job_type, count(*) as problems, sum(coalesce(p.weight, 1)) as weight
        from lane l
        cross join lateral (
            select f.batch_order from pcfarm.problem f where f.job_id = job and f.lane_id = l.lane_id
                and f.batch_order >= l.next_extraction order by f.batch_order limit 1) f
        cross join lateral (
            select p.weight from pcfarm.problem p
            where p.job_id = job and p.lane_id = l.lane_id and p.batch_order = f.batch_order offset 0) p
        where l.has_work and not l.parked
        group by l.job_type, l.lane_id
        union all
        select l.job_type, count(*), sum(coalesce(p.weight, 1))
        from lane l
        cross join lateral (
            select f.batch_order from pcfarm.requeued f where f.job_id = job and f.lane_id = l.lane_id
                and f.batch_order >= l.next_extraction order by f.batch_order limit 1) f
        cross join lateral (
            select r.home_lane, r.home_order, r.problem_id from pcfarm.requeued r
            where r.job_id = job and r.lane_id = l.lane_id and r.batch_order = f.batch_order offset 0) r
        cross join lateral (
            select p.weight from pcfarm.problem p
            where p.job_id = job and p.lane_id = r.home_lane and p.batch_order = r.home_order
                and p.problem_id = r.problem_id offset 0) p
        where l.has_work and not l.parked
        group by l.job_type, l.lane_id),
    convoy as (
        select f.job_type, f.problems, f.weight from first_convoy f
        union all
        select j.job_type, f.problems, f.weight from of_job j join first_convoy f on f.job_type <> j.job_type)
    select o.why from (
        select 0 as rank, format('it comes after job %s (%s), which is %s%s', b.job_id, b.name, b.state,
            case when b.state in ('failed', 'cancelled') then ': `pcfarm job retry ' || b.job_id || '`, or cancel this one' else '' end) as why
        from pcfarm.waits_for(job) b
        union all
        select 1 as rank, format('the whole queue is suspended%s: `pcfarm queue resume` goes on',
            coalesce(' (' || nullif(f.suspended_reason, '') || ')', '')) as why
        from pcfarm.farm f where f.suspended_since is not null
        union all
        select 2, format('job type %s is suspended%s: `pcfarm queue resume --type %s` goes on', t.name,
            coalesce(' (' || nullif(t.suspended_reason, '') || ')', ''), t.name)
        from job_type n join pcfarm.job_type t on t.name = n.job_type where t.suspended_since is not null
        union all
        select 3, format('%s of it are parked: `pcfarm queue unpark --job %s` lets them go',
            case when bool_and(l.parked) then 'all problems' else 'some problems' end, job)
        from lane l where l.has_work having bool_or(l.parked)
        union all
        select 4, format('user %s is prohibited: only workstations that require it by name serve it', u.name)
        from of_job j join pcfarm.farm_user u on u.name = j.owner where u.prohibited
        union all
        select 5, format('user %s has an allocation of 0: it is out of the ring', j.owner)
        from of_job j cross join pcfarm.farm f left join pcfarm.farm_user u on u.name = j.owner
        where coalesce(u.allocation, f.allocation) = 0
        union all
        select 6, format('user %s has %s problems in progress of at most %s', j.owner, p.problems, coalesce(u.concurrency, f.concurrency))
        from of_job j cross join pcfarm.farm f left join pcfarm.farm_user u on u.name = j.owner
        cross join lateral (select pcfarm.in_progress_of(j.owner) as problems offset 0) p
        where p.problems >= coalesce(u.concurrency, f.concurrency)
        union all
        select 7, format('user %s has %s problems of job type %s in progress of at most %s', j.owner, p.problems, u.job_type, u.concurrency)
        from of_job j join pcfarm.user_job_type u on u.user_name = j.owner join job_type n on n.job_type = u.job_type
        cross join lateral (select pcfarm.in_progress_of(j.owner, u.job_type) as problems offset 0) p
        where p.problems >= u.concurrency
        union all
        select 8, format('job type %s needs %s of resource %s, and %s of %s are in use', n.job_type, n.tokens, r.name, p.tokens, r.tokens)
        from job_type t join pcfarm.job_type_resource n on n.job_type = t.job_type join pcfarm.resource r on r.name = n.resource
        cross join lateral (select pcfarm.tokens_in_use(r.name) as tokens offset 0) p
        where p.tokens + n.tokens > r.tokens
        union all
        select 9, format('profile entry %s lets job type %s have %s an hour, and %s are left: more from %s', p.profile_id, n.job_type,
            p.problems_per_hour, p.room, coalesce(to_char((
                select min(h.at) from pcfarm.handed_out h
                where h.profile_id = p.profile_id and h.at > (select clock_timestamp() - pcfarm.hour()))
                + pcfarm.hour(), 'YYYY-MM-DD HH24:MI:SS TZH'), 'its next hour'))
        from job_type n join pcfarm.profile_now p on p.job_type = n.job_type
        where p.room < coalesce((select min(c.weight) from convoy c where c.job_type = n.job_type), 1)
        union all
        select 10, format('its next convoy of job type %s has %s problems, and %s: load smaller ones', c.job_type, c.problems, m.what)
        from of_job j
        cross join convoy c
        cross join lateral (
            select p.problems_per_checkout::bigint as most, format('profile entry %s lets a checkout have %s', p.profile_id,
                p.problems_per_checkout) as what
            from pcfarm.profile_now p where p.job_type = c.job_type
            union all
            select coalesce(u.concurrency, f.concurrency), format('user %s may have %s in progress', j.owner,
                coalesce(u.concurrency, f.concurrency))
            from pcfarm.farm f left join pcfarm.farm_user u on u.name = j.owner
            union all
            select u.concurrency, format('user %s may have %s of that job type in progress', j.owner, u.concurrency)
            from pcfarm.user_job_type u where u.user_name = j.owner and u.job_type = c.job_type
            union all
            select r.tokens / n.tokens, format('resource %s has tokens for %s', r.name, r.tokens / n.tokens)
            from pcfarm.job_type_resource n join pcfarm.resource r on r.name = n.resource where n.job_type = c.job_type) m
        where m.most > 0 and c.problems > m.most
        union all
        select 10, format('its next convoy of job type %s weighs %s, and profile entry %s lets no hour have more than %s: load '
            'smaller ones', c.job_type, c.weight, p.profile_id, p.problems_per_hour)
        from convoy c join pcfarm.profile_now p on p.job_type = c.job_type
        where p.problems_per_hour > 0 and c.weight > p.problems_per_hour
        union all
        select 11, format('%s wait for their time, the first until %s', count(*),
            to_char(min(d.due_at) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'))
        from pcfarm.delayed d where d.job_id = job having count(*) > 0) o
    order by o.rank
$$;

create view pcfarm.user_status as
select u.name, u.queue_limit, u.concurrency, u.allocation, u.prohibited,
    pcfarm.waiting_of(u.name) as waiting, pcfarm.in_progress_of(u.name) as in_progress,
    (select count(*) from pcfarm.job j where j.ended_at is null and j.owner = u.name) as open_jobs
from pcfarm.farm_user u;
comment on view pcfarm.user_status is
    'Users with limits of their own (null: as pcfarm.farm has it), the problems that they have waiting and in progress, and '
    'their jobs that have not ended.';

create view pcfarm.resource_status as
select r.name, r.tokens, pcfarm.tokens_in_use(r.name) as in_use, r.description
from pcfarm.resource r;
comment on view pcfarm.resource_status is 'Resources, their tokens, and how many of them problems in progress have.';

-- A target may be a secret itself: everybody sees their own.
create view pcfarm.subscription_status with (security_barrier) as
select s.subscription_id, s.owner, s.job_id, s.job_type, s.all_users, s.events, s.failed_share, s.channel, s.target, s.digest_at,
    s.time_zone, s.next_digest_at, s.created_at
from pcfarm.subscription s
where s.owner = pcfarm.acting_user() or pcfarm.is_administrator();
comment on view pcfarm.subscription_status is 'Who is told of what, and where; everybody sees their own, administrators all.';

create view pcfarm.alert_status with (security_barrier) as
select a.alert_id, a.subscription_id, s.owner, s.channel, s.target, a.what, a.job_id, a.body ->> 'name' as job_name,
    case when a.delivered_at is not null then 'delivered' when a.given_up_at is not null then 'given_up' else 'waiting' end as state,
    a.message, a.attempts, a.created_at, a.next_attempt_at, a.delivered_at, a.given_up_at
from pcfarm.alert a
join pcfarm.subscription s on s.subscription_id = a.subscription_id
where s.owner = pcfarm.acting_user() or pcfarm.is_administrator();
comment on view pcfarm.alert_status is
    'Alerts of the last month: delivered, waiting (message says why it was not delivered yet) or given_up.';

-- Roles -------------------------------------------------------------------------------------------------------

do $$
begin
    -- Roles belong to the whole cluster: another database, or an administrator, may have made this one. A login without CREATEROLE
    -- may not even try to; the server checks beforehand that it has no need to.
    if not exists (select from pg_roles where rolname = 'pcfarm_loader') then
        begin
            create role pcfarm_loader nologin;
        exception
            when duplicate_object or unique_violation then null;
        end;
    end if;
    grant usage on schema pcfarm to pcfarm_loader;
    grant select on pcfarm.job_type, pcfarm.related_read, pcfarm.job, pcfarm.lane, pcfarm.problem, pcfarm.requeued,
        pcfarm.result, pcfarm.queue_pointer, pcfarm.in_progress, pcfarm.workstation_status, pcfarm.job_progress,
        pcfarm.jobs_ordered, pcfarm.problems_ordered, pcfarm.job_problems, pcfarm.user_status, pcfarm.resource_status,
        pcfarm.profile, pcfarm.profile_now, pcfarm.signal, pcfarm.job_after, pcfarm.job_info, pcfarm.statistic, pcfarm.event,
        pcfarm.subscription_status, pcfarm.alert_status to pcfarm_loader;
    grant insert, update (batch_order) on pcfarm.problem to pcfarm_loader;
    grant select, insert on pcfarm.delayed to pcfarm_loader;
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
                'cancel_job', 'retry_job', 'rerun_job', 'check_transaction', 'check_loadable', 'load_columns', 'load_column',
                'register_lanes', 'lock_for_loading', 'convoy_must_be_sensible', 'job_type_must_exist', 'no_such_job',
                'pack', 'pack_step', 'pack_groups', 'pack_staged', 'no_problems', 'convoy_is_too_large', 'analyze_after_load',
                'set_signal', 'explain_profile', 'profile_at', 'handed_out_in_an_hour', 'in_progress_of', 'tokens_in_use',
                'waiting_of', 'run_after', 'waits_for', 'set_info', 'subscribe', 'unsubscribe', 'retry_alert',
                'is_administrator', 'is_server', 'acting_user', 'sees')
            and exists (select from pg_roles where rolname = 'pcfarm_loader')
        then
            execute format('grant execute on routine %s to pcfarm_loader', f.signature);
        end if;
    end loop;
end $$;
