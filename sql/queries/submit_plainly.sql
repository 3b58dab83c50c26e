-- A new job of a few problems where nothing but they has to be looked at: neither the farm nor its owner has a limit, no job
-- type needs a resource, and its options need no rows of their own. What pcfarm.submit_problems does with them, in one statement, whose parts cost less than a function's
-- statements. No row: nothing has happened, and the function is to be asked; also where its key has been used before.
with acting as materialized (
    -- For this transaction: the connection is kept for the next submission, which may be another user's.
    select case when $7::text is not null then set_config('pcfarm.user', $7, true) || set_config('pcfarm.rights', $8::text, true) end,
        set_config('lock_timeout', '100ms', true)),
by_whom as materialized (select pcfarm.acting_user() as name from acting),
plan as materialized (
    select u.name as owner, t.name as job_type, clock_timestamp() as moment,
        coalesce(($3::jsonb ->> 'priority')::integer, t.default_priority) as priority,
        ($3 ->> 'deadline')::timestamptz as deadline, t.default_duration as duration,
        t.suspended_since is null and t.requirement is null and t.labels = '{}' as ready,
        f.suspended_since is null and coalesce(u.allocation, f.allocation) > 0 and not u.prohibited as served
    from by_whom b
    join pcfarm.farm_user u on u.name = b.name
    cross join pcfarm.farm f
    join pcfarm.job_type t on t.name = $2::text
    where $3 - array['title', 'priority', 'deadline', 'standing', 'parameters', 'idempotency_key', 'idempotency_digest',
            'trace_parent'] = '{}'
        and coalesce(u.concurrency, f.concurrency, u.queue_limit, f.queue_limit) is null
        and not exists (select from pcfarm.user_job_type o where o.user_name = u.name)
        and not exists (select from pcfarm.job_type_resource)),
job as (
    insert into pcfarm.job as j (name, job_type, owner, title, priority, deadline, standing, parameters, idempotency_key,
        submitted, trace_parent, created_at, state, opened_at)
    select $1::text, p.job_type, p.owner, coalesce($3 ->> 'title', ''), p.priority, coalesce(p.deadline, p.moment + p.duration),
        coalesce(($3 ->> 'standing')::boolean, false), $3 -> 'parameters', $3 ->> 'idempotency_key',
        case when $3 ? 'idempotency_key' then
            jsonb_build_object('name', $1, 'job_type', $2, 'options', $3 - 'trace_parent') end,
        $3 ->> 'trace_parent', p.moment, 'open', p.moment
    from plan p
    on conflict do nothing
    returning j.job_id, j.owner, j.name, j.job_type, j.priority, j.deadline, j.parameters, j.trace_parent,
        nextval('pcfarm.lane_number') as lane_id),
lane as (
    insert into pcfarm.lane (job_id, lane_id, kind, job_type, next_insertion, problems)
    select j.job_id, j.lane_id, 'load', j.job_type, (cardinality($4::text[]) - 1) / $6::integer + 1, cardinality($4)
    from job j),
problem as (
    insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload)
    select j.job_id, j.lane_id, j.lane_id * 10000000000 + n.number, (n.number - 1) / $6, n.key, n.payload
    from job j cross join unnest($4, $5::jsonb[]) with ordinality as n(key, payload, number)
    returning problem_id, payload),
checkout as (
    insert into pcfarm.checkout
        (job_id, lane_id, job_type, owner, from_order, to_order, problems, workstation_id, token, deadline)
    select j.job_id, j.lane_id, j.job_type, j.owner, 0, 1, cardinality($4), $11::bigint, $12::bigint,
        p.moment + $13::float8 * interval '1 second'
    from plan p cross join job j
    where p.ready and p.served and j.job_type = $10::text
        and not exists (select from pcfarm.profile f where f.job_type = j.job_type)
    returning checkout_id)
select j.job_id as into_job, false as repeated, j.lane_id as into_lane,
    (select array_agg(i.payload order by i.problem_id) from problem i) as stored,
    j.owner::text, j.name, j.job_type, j.priority, j.deadline, j.parameters, p.ready, j.trace_parent, c.checkout_id as checkout,
    case when c.checkout_id is null and exists (
        select from pcfarm.server s where s.server_id <> $9::bigint and s.stopped_at is null
            -- One that was killed never says that it stops.
            and s.heard_at > clock_timestamp() - interval '1 minute')
    then pg_notify('pcfarm', 'work of ' || $9) end as told
from plan p cross join job j left join checkout c on true
