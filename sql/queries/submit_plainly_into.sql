-- The same into a job that is there: see submit_plainly.sql. Whoever has the job locked is waited for by the function.
-- What is asked beside the job's row may be older than its lock by a moment, as with check_out.sql.
with acting as materialized (
    select case when $6::text is not null then set_config('pcfarm.user', $6, true) || set_config('pcfarm.rights', $7::text, true) end,
        set_config('lock_timeout', '100ms', true)),
by_whom as materialized (
    -- As pcfarm.sees has it.
    select pcfarm.acting_user() as name, coalesce(current_setting('pcfarm.rights', true), '') <> 'own' as sees_all from acting),
job as materialized (
    select j.*, f.suspended_since is null and coalesce(u.allocation, f.allocation) > 0 and not u.prohibited as served
    from by_whom b
    join pcfarm.job j on j.job_id = $1::bigint and (b.sees_all or j.owner = b.name)
    join pcfarm.farm_user u on u.name = j.owner
    cross join pcfarm.farm f
    where (j.state in ('open', 'held') or j.state = 'loading' and not $5::boolean) and not j.problem_files
        and coalesce(u.concurrency, f.concurrency, u.queue_limit, f.queue_limit) is null
        and not exists (select from pcfarm.user_job_type o where o.user_name = u.name)
        and not exists (select from pcfarm.job_type_resource)
    for share of j skip locked),
plan as materialized (
    select j.job_id, j.owner, j.name, j.job_type, j.priority, j.deadline, j.parameters, j.trace_parent,
        clock_timestamp() as moment, nextval('pcfarm.lane_number') as lane_id,
        j.state = 'open' and coalesce(j.not_before, '-infinity') <= clock_timestamp() and j.requirement is null
            and t.suspended_since is null and t.requirement is null and t.labels = '{}'
            -- Asked so that none of these is read whole, to be hashed.
            and (select true from pcfarm.job_after a where a.job_id = j.job_id limit 1) is null
            and (select true from pcfarm.job_info i where i.job_id = j.job_id limit 1) is null
            and (select true from pcfarm.job_file f where f.job_id = j.job_id limit 1) is null as ready, j.served
    from job j join pcfarm.job_type t on t.name = j.job_type),
lane as (
    insert into pcfarm.lane (job_id, lane_id, kind, job_type, next_insertion, problems)
    select p.job_id, p.lane_id, 'load', p.job_type, (cardinality($2::text[]) - 1) / $4::integer + 1, cardinality($2)
    from plan p),
problem as (
    insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload)
    select p.job_id, p.lane_id, p.lane_id * 10000000000 + n.number, (n.number - 1) / $4, n.key, n.payload
    from plan p cross join unnest($2, $3::jsonb[]) with ordinality as n(key, payload, number)
    returning problem_id, payload),
checkout as (
    insert into pcfarm.checkout
        (job_id, lane_id, job_type, owner, from_order, to_order, problems, workstation_id, token, deadline)
    select p.job_id, p.lane_id, p.job_type, p.owner, 0, 1, cardinality($2), $10::bigint, $11::bigint,
        p.moment + $12::float8 * interval '1 second'
    from plan p
    where p.ready and p.served and p.job_type = $9::text
        and not exists (select from pcfarm.profile f where f.job_type = p.job_type)
    returning checkout_id)
select p.job_id as into_job, false as repeated, p.lane_id as into_lane,
    (select array_agg(i.payload order by i.problem_id) from problem i) as stored,
    p.owner::text, p.name, p.job_type, p.priority, p.deadline, p.parameters, p.ready, p.trace_parent, c.checkout_id as checkout,
    case when c.checkout_id is null and exists (
        select from pcfarm.server s where s.server_id <> $8::bigint and s.stopped_at is null
            and s.heard_at > clock_timestamp() - interval '1 minute')
    then pg_notify('pcfarm', 'work of ' || $8) end as told
from plan p left join checkout c on true
