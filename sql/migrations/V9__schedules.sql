-- Schedules: what is to be done when, and what came of it.
--
-- A schedule's definition changes when somebody changes it, its next time with every trigger: so the next times are in a
-- narrow table of their own. Whoever triggers or changes a schedule locks its row there first; then jobs, lanes and
-- problems, in that order. Times are computed by servers; what they have to go by is written here.

create table pcfarm.schedule (
    schedule_id    bigint generated always as identity primary key,
    owner          name not null default pcfarm.acting_user(),
    name           text not null
                   constraint schedule_name check (length(name) between 1 and 100 and name !~ '[[:cntrl:]/]' and name !~ '^[0-9]+$'),
    description    text not null default '' constraint schedule_description check (length(description) <= 1000),
    -- A cron expression of 5 or 6 fields or its nickname; 'every 15 minutes'; 'once 2027-01-31T18:00'.
    recurrence     text not null constraint schedule_recurrence check (length(recurrence) between 1 and 500),
    time_zone      text not null default 'UTC' constraint schedule_time_zone check (length(time_zone) between 1 and 100),
    -- No due time is before or after these. What an interval counts from is the first, or anchored_at.
    starts_at      timestamptz,
    ends_at        timestamptz,
    enabled        boolean not null default true,
    -- Of due times that nobody was there for: none of them, the last one, or all.
    catch_up       text not null default 'once' constraint schedule_catch_up check (catch_up in ('skip', 'once', 'all')),
    catch_up_limit integer not null default 1000 constraint schedule_catch_up_limit check (catch_up_limit between 1 and 100000),
    -- A trigger comes so much later than it is due at most.
    jitter_ms      bigint not null default 0 constraint schedule_jitter check (jitter_ms between 0 and 86400000),
    payload        jsonb not null default 'null'
                   constraint schedule_payload_at_most_64_kib check (pg_column_size(payload) <= 65536),
    -- What a trigger does: a problem of this job, or a job as the template says.
    job_id         bigint,
    template       jsonb constraint schedule_template_is_an_object check (jsonb_typeof(template) = 'object')
                   constraint schedule_template_at_most_64_kib check (pg_column_size(template) <= 65536),
    -- Grows with every change.
    version        bigint not null default 1,
    -- Since when its times are as they are: none before this is triggered.
    anchored_at    timestamptz not null default date_trunc('second', clock_timestamp()),
    -- Why it triggers nothing.
    error          text,
    created_at     timestamptz not null default clock_timestamp(),
    changed_at     timestamptz not null default clock_timestamp(),
    constraint schedule_name_is_unique unique (owner, name),
    constraint schedule_has_one_target check ((job_id is null) <> (template is null)),
    constraint schedule_ends_after_it_starts check (ends_at >= starts_at)
);

-- One row for each schedule. A trigger writes it anew, and that cannot be HOT: its key in the index is what changes. Half of
-- each page is free, so that the new row goes beside the old one; what bounds how many dead ones a server reads is said
-- where it claims what is due.
create table pcfarm.schedule_next (
    schedule_id       bigint primary key,
    -- Of the definition that due_at was computed from.
    version           bigint not null default 1,
    -- Triggers so far.
    sequence          bigint not null default 0,
    -- Null: to be computed when somebody looks; never again when nobody is to look.
    due_at            timestamptz,
    -- When a server is to look at it: when it is due and its jitter is over. Never before the time of writing.
    wake_at           timestamptz default clock_timestamp(),
    -- The last due time that a server triggered. No due time up to it is triggered again. Triggers by hand leave it alone.
    last_due_at       timestamptz,
    last_triggered_at timestamptz,
    -- Due times in the future that a clock that was ahead triggered. They are not triggered again.
    early             timestamptz[],
    -- Where its last trigger is written down.
    last_tick         bigint
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index schedule_wake on pcfarm.schedule_next (wake_at) where wake_at is not null;

-- History: one row for all that one transaction triggered. A trigger is a place in the arrays, and says in which tick the
-- one before it of the same schedule is: so it costs some bytes and no index entry, and a schedule's history is read by
-- going from tick to tick, however many others there are.
create table pcfarm.schedule_tick (
    tick_id      bigint generated always as identity primary key,
    ticked_at    timestamptz not null,
    -- Null: by hand.
    server_id    bigint,
    schedule_ids bigint[] not null,
    sequences    bigint[] not null,
    due_ats      timestamptz[] not null,
    previous     bigint[] not null,
    job_ids      bigint[] not null,
    -- Null where a job was made.
    problem_ids  bigint[] not null,
    -- Why nothing came of it.
    refusals     text[] not null
);

-- How often schedules of a user came, one row for each transaction that triggered some, until a server adds them up.
create table pcfarm.trigger_count (
    owner        name not null,
    triggered_at timestamptz not null,
    triggers     bigint not null
);
create table pcfarm.trigger_statistic (
    hour     timestamptz not null,
    owner    name not null,
    triggers bigint not null,
    primary key (hour, owner)
);

-- What is still to be loaded into jobs that schedules have made.
create table pcfarm.schedule_load (
    job_id          bigint not null,
    number          integer not null,
    schedule_id     bigint not null,
    due_at          timestamptz not null,
    query           text not null,
    convoy          integer not null,
    time_limit      interval not null,
    attempts        integer not null default 0,
    -- Nobody else is to try before then.
    next_attempt_at timestamptz default clock_timestamp(),
    -- What went wrong with the last attempt.
    message         text,
    problems        bigint,
    loaded_at       timestamptz,
    primary key (job_id, number),
    constraint schedule_load_is_over check ((loaded_at is null) = (problems is null))
);
create index schedule_load_due on pcfarm.schedule_load (next_attempt_at) where loaded_at is null and next_attempt_at is not null;

create trigger note after insert or update or delete on pcfarm.schedule for each row
    execute function pcfarm.note_setting('schedule', 'name');

-- Jobs and their loads go together.
create function pcfarm.forget_schedule_loads()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from pcfarm.schedule_load l where l.job_id = old.job_id;
    return null;
end $$;
create trigger forget_schedule_loads after delete on pcfarm.job for each row execute function pcfarm.forget_schedule_loads();

-- Triggering --------------------------------------------------------------------------------------------------------------

create function pcfarm.schedule_load_time_limit(load jsonb)
returns interval language sql immutable as $$
    select coalesce((load ->> 'time_limit')::interval, interval '5 minutes')
$$;

-- One for each due time of a schedule, however often somebody tries.
create function pcfarm.schedule_job_key(schedule bigint, due timestamptz)
returns text language sql immutable set timezone = 'UTC' as $$
    select 'schedule ' || schedule || ' at ' || (to_jsonb(due) #>> '{}')
$$;

-- What the payload of each problem, and the parameters of each job, say of the trigger.
create function pcfarm.schedule_envelope(name text, sequence bigint, due timestamptz, payload jsonb)
returns jsonb language sql immutable set timezone = 'UTC' as $$
    select jsonb_build_object('schedule', name, 'sequence', sequence, 'due', due, 'payload', payload)
$$;

-- Triggers schedules, and writes their next times, in the caller's transaction. Its caller has locked their rows in
-- pcfarm.schedule_next and has seen these sequences in them. Triggers are one list, a schedule's in the order of their due
-- times; schedules are another, with how many of the triggers are theirs, and the last one's due time. One without triggers
-- only gets its next time. Schedules whose job is in somebody's hands stay as they are, to be looked at again soon: nobody
-- else waits for them. All of it is a fixed number of statements, but for jobs whose owner has a queue limit, each of which
-- is checked.
create function pcfarm.trigger_schedules(
    server bigint, trigger_ids bigint[], trigger_dues timestamptz[],
    ids bigint[], seen bigint[], counts integer[], last_dues timestamptz[], next_dues timestamptz[], next_wakes timestamptz[],
    traced_by text, out triggered bigint, out refused bigint, out postponed bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC'
-- Everything here is found by its key, however many schedules there are; and nothing is joined that has no key.
set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    moment    timestamptz := clock_timestamp();
    tick      bigint;
    written   bigint;
    targets   bigint[];
    open_jobs bigint[];
    busy      bigint[] := '{}';
    -- Jobs that take no problems, and why.
    shut      jsonb := '{}';
    limited   record;
begin
    triggered := 0;
    refused := 0;
    postponed := 0;
    if cardinality(trigger_ids) > 0 then
        select array_agg(distinct s.job_id) into targets
        from pcfarm.schedule s where s.schedule_id = any (trigger_ids) and s.job_id is not null;
    end if;
    if targets is not null then
        -- Shared, as loads do. The next statements see what whoever held it has done.
        select coalesce(array_agg(j.job_id), '{}') into open_jobs
        from (select j.job_id from pcfarm.job j where j.job_id = any (targets) order by j.job_id for share skip locked) j;
        select coalesce(array_agg(t.id) filter (where j.job_id is not null and j.job_id <> all (open_jobs)), '{}'),
            coalesce(jsonb_object_agg(t.id, case when j.job_id is null then format('there is no job %s', t.id)
                else format('job %s has ended (%s)', j.job_id, j.state) end)
                filter (where j.job_id is null or (j.job_id = any (open_jobs) and j.ended_at is not null)), '{}')
        into busy, shut
        from unnest(targets) as t(id)
        left join pcfarm.job j on j.job_id = t.id;
        if exists (select from pcfarm.farm f where f.queue_limit is not null)
            or exists (select from pcfarm.farm_user u where u.queue_limit is not null)
            or exists (select from pcfarm.user_job_type u where u.queue_limit is not null)
            or exists (select from pcfarm.quota)
        then
            for limited in
                -- With what comes for the same user's jobs before it.
                select s.job_id, s.owner, sum(count(*)) over (partition by s.owner order by s.job_id)::bigint as problems
                from unnest(trigger_ids) as t(schedule_id)
                join pcfarm.schedule s on s.schedule_id = t.schedule_id
                where s.job_id = any (open_jobs) and not shut ? s.job_id::text
                group by s.owner, s.job_id
                order by s.job_id
            loop
                begin
                    perform pcfarm.check_load_limits(j,
                        array[(0, null, 0, false, limited.problems, limited.problems)::pcfarm.packed_lane])
                    from pcfarm.job j where j.job_id = limited.job_id;
                    -- Whoever is over it is refused here, and not with everybody else when the lane is made.
                    perform pcfarm.refuse_over_quota(limited.owner, limited.problems);
                exception when configuration_limit_exceeded or program_limit_exceeded then
                    shut := shut || jsonb_build_object(limited.job_id::text, sqlerrm);
                end;
            end loop;
        end if;
    end if;
    if cardinality(trigger_ids) > 0 then
        tick := nextval(pg_get_serial_sequence('pcfarm.schedule_tick', 'tick_id'));
        with given as (
            select t.n, t.schedule_id, t.due_at, s.owner, s.name, s.payload, s.job_id, s.template, x.last_tick,
                x.sequence + row_number() over (partition by t.schedule_id order by t.n) as sequence,
                case
                    when s.job_id is not null then shut ->> s.job_id::text
                    when not exists (select from pcfarm.job_type k where k.name = s.template ->> 'job_type')
                        then format('there is no job type %s', s.template ->> 'job_type')
                end as refusal
            from unnest(trigger_ids, trigger_dues) with ordinality as t(schedule_id, due_at, n)
            join pcfarm.schedule s on s.schedule_id = t.schedule_id
            join pcfarm.schedule_next x on x.schedule_id = t.schedule_id
            where s.job_id is null or s.job_id <> all (busy)),
        numbered as (
            select g.*, row_number() over (partition by g.job_id, g.refusal is null order by g.n) as number,
                case
                    when g.refusal is null and g.job_id is null
                        then nextval(pg_get_serial_sequence('pcfarm.job', 'job_id'))
                end as made_job
            from given g),
        -- The first of a job's takes the number of their lane.
        laned as (
            select u.*, case when u.refusal is null and u.job_id is not null and u.number = 1
                then nextval('pcfarm.lane_number') end as new_lane
            from numbered u),
        placed as materialized (
            select l.*, max(l.new_lane) over (partition by l.job_id, l.refusal is null) as lane_id,
                case when l.new_lane is not null
                    then count(*) over (partition by l.job_id, l.refusal is null) end as problems
            from laned l),
        enqueued as (
            insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload)
            select e.job_id, e.lane_id, e.lane_id * 10000000000 + e.number, e.number - 1, e.name || '/' || e.sequence,
                jsonb_build_object('schedule', e.name, 'sequence', e.sequence, 'due', e.due_at, 'payload', e.payload)
            from placed e
            where e.lane_id is not null and e.refusal is null),
        registered as (
            insert into pcfarm.lane (job_id, lane_id, kind, job_type, next_insertion, problems)
            select l.job_id, l.new_lane, 'load', j.job_type, l.problems, l.problems
            from placed l join pcfarm.job j on j.job_id = l.job_id
            where l.new_lane is not null),
        made as (
            insert into pcfarm.job (job_id, name, job_type, owner, title, priority, deadline, parameters, requirement, unique_key,
                trace_parent)
            overriding system value
            select g.made_job, coalesce(g.template ->> 'name', g.name), k.name, g.owner, coalesce(g.template ->> 'title', ''),
                coalesce((g.template ->> 'priority')::integer, k.default_priority),
                coalesce(g.due_at + (g.template ->> 'deadline_after')::interval, moment + k.default_duration),
                coalesce(g.template -> 'parameters', '{}')
                    || pcfarm.schedule_envelope(g.name, g.sequence, g.due_at, g.payload),
                pcfarm.requirement(g.template -> 'require'),
                pcfarm.schedule_job_key(g.schedule_id, g.due_at), traced_by
            from placed g
            join pcfarm.job_type k on k.name = g.template ->> 'job_type'
            where g.made_job is not null
            on conflict (owner, unique_key) where unique_key is not null do nothing
            returning owner),
        -- Whoever hands out under a limit locks this row, so it has to be there.
        known as (
            insert into pcfarm.farm_user (name) select distinct m.owner from made m order by m.owner on conflict do nothing),
        to_load as (
            insert into pcfarm.schedule_load (job_id, number, schedule_id, due_at, query, convoy, time_limit)
            select g.made_job, l.number, g.schedule_id, g.due_at, l.load ->> 'query',
                coalesce((l.load ->> 'convoy')::integer, 100), pcfarm.schedule_load_time_limit(l.load)
            from placed g
            cross join lateral jsonb_array_elements(g.template -> 'loads') with ordinality as l(load, number)
            where g.made_job is not null),
        counted as (
            insert into pcfarm.trigger_count (owner, triggered_at, triggers)
            select g.owner, moment, count(*) from placed g where g.refusal is null group by g.owner),
        noted as (
            insert into pcfarm.schedule_tick (tick_id, ticked_at, server_id, schedule_ids, sequences, due_ats, previous, job_ids,
                problem_ids, refusals)
            overriding system value
            select tick, moment, server, array_agg(g.schedule_id), array_agg(g.sequence), array_agg(g.due_at),
                array_agg(g.last_tick), array_agg(coalesce(g.made_job, g.job_id)),
                array_agg(case when g.refusal is null then g.lane_id * 10000000000 + g.number end), array_agg(g.refusal)
            from (select p.* from placed p order by p.n) g
            having count(*) > 0)
        select count(*) filter (where g.refusal is null), count(g.refusal) into triggered, refused from placed g;
    end if;
    with advanced as (
        update pcfarm.schedule_next x
        set sequence = x.sequence + case when p.postponed then 0 else a.triggers end,
            due_at = case when p.postponed then x.due_at else a.due_at end,
            wake_at = case when p.postponed then moment + interval '250 milliseconds' else a.wake_at end,
            last_due_at = case when p.postponed or a.triggers = 0 or server is null then x.last_due_at else a.last_due_at end,
            -- Sorted. Kept until the next due time is behind them.
            early = case when p.postponed or a.due_at is null or x.early[cardinality(x.early)] >= a.due_at then x.early end,
            last_triggered_at = case when p.postponed or a.triggers = 0 then x.last_triggered_at else moment end,
            last_tick = case when p.postponed or a.triggers = 0 then x.last_tick else tick end
        from unnest(ids, seen, counts, last_dues, next_dues, next_wakes)
            as a(schedule_id, seen, triggers, last_due_at, due_at, wake_at)
        join pcfarm.schedule s on s.schedule_id = a.schedule_id
        cross join lateral (select a.triggers > 0 and coalesce(s.job_id = any (busy), false) as postponed) p
        where x.schedule_id = a.schedule_id and x.sequence = a.seen
        returning p.postponed)
    select count(*) filter (where a.postponed), count(*) into postponed, written from advanced a;
    if written <> cardinality(ids) then
        raise exception '% of % schedules were not as they had been seen', cardinality(ids) - written, cardinality(ids)
            using errcode = 'serialization_failure', hint = 'Lock their rows in pcfarm.schedule_next first.';
    end if;
    if triggered > 0 then
        perform pg_notify('pcfarm', 'work');
        -- Jobs were made: what they wait for is to be loaded.
        if exists (select from pcfarm.schedule s where s.schedule_id = any (trigger_ids) and s.template is not null) then
            perform pg_notify('pcfarm', 'schedule_load');
        end if;
    end if;
end $$;

-- What people call ----------------------------------------------------------------------------------------------------------

create function pcfarm.no_such_schedule(schedule text)
returns void language plpgsql immutable as $$
begin
    raise exception 'there is no schedule %', coalesce(schedule, 'null')
        using errcode = 'no_data_found', hint = 'See pcfarm.schedule_status.';
end $$;

-- A schedule's options as columns: what is not named is as in `before`. Refuses what is no option, and what makes no sense
-- that can be told here; recurrences and time zones are read by servers.
create function pcfarm.schedule_of(before pcfarm.schedule, options jsonb)
returns pcfarm.schedule language plpgsql as $$
declare
    changed pcfarm.schedule := before;
    unknown text;
    wrong   text;
begin
    if jsonb_typeof(coalesce(options, '{}')) <> 'object' then
        raise exception 'options must be a JSON object' using errcode = 'invalid_parameter_value';
    end if;
    select string_agg(quote_literal(o.key), ', ') into unknown
    from jsonb_object_keys(coalesce(options, '{}')) as o(key)
    where o.key not in ('name', 'description', 'recurrence', 'time_zone', 'starts_at', 'ends_at', 'enabled', 'catch_up',
                        'catch_up_limit', 'jitter_ms', 'payload', 'job', 'job_key', 'template');
    if unknown is not null then
        raise exception 'schedule %: no such option: %', before.name, unknown
            using errcode = 'invalid_parameter_value',
                  hint = 'Options are name, description, recurrence, time_zone, starts_at, ends_at, enabled, catch_up, '
                         'catch_up_limit, jitter_ms, payload, job (an id), job_key (a unique_key) and template.';
    end if;
    changed.name := coalesce(options ->> 'name', before.name);
    changed.description := coalesce(options ->> 'description', before.description, '');
    changed.recurrence := coalesce(btrim(options ->> 'recurrence'), before.recurrence);
    changed.time_zone := coalesce(options ->> 'time_zone', before.time_zone, 'UTC');
    changed.starts_at := case when options ? 'starts_at' then (options ->> 'starts_at')::timestamptz else before.starts_at end;
    changed.ends_at := case when options ? 'ends_at' then (options ->> 'ends_at')::timestamptz else before.ends_at end;
    changed.enabled := coalesce((options ->> 'enabled')::boolean, before.enabled, true);
    changed.catch_up := coalesce(options ->> 'catch_up', before.catch_up, 'once');
    changed.catch_up_limit := coalesce((options ->> 'catch_up_limit')::integer, before.catch_up_limit, 1000);
    changed.jitter_ms := coalesce((options ->> 'jitter_ms')::bigint, before.jitter_ms, 0);
    changed.payload := coalesce(options -> 'payload', before.payload, 'null');
    if options ? 'job' or options ? 'job_key' then
        changed.template := null;
        changed.job_id := (options ->> 'job')::bigint;
        if options ? 'job_key' then
            select j.job_id into changed.job_id from pcfarm.job j
            where j.owner = before.owner and j.unique_key = options ->> 'job_key';
            if changed.job_id is null then
                raise exception 'schedule %: user % has no job of unique key %', changed.name, before.owner, options ->> 'job_key'
                    using errcode = 'invalid_parameter_value',
                          hint = 'Create one: pcfarm.create_job(name, job_type, ''{"standing": true, "unique_key": "…"}'').';
            end if;
        end if;
    end if;
    if options ? 'template' then
        if options ? 'job' or options ? 'job_key' then
            raise exception 'schedule %: a job and a template', changed.name
                using errcode = 'invalid_parameter_value', hint = 'A trigger enqueues a problem into a job, or makes a job: say one.';
        end if;
        changed.job_id := null;
        changed.template := options -> 'template';
    end if;
    if changed.job_id is not null and (changed.job_id is distinct from before.job_id) then
        select case
            when count(*) = 0 then format('there is no job %s', changed.job_id)
            when not bool_or(j.standing) then format('job %s is not standing: it would end when it is empty', changed.job_id)
            when bool_or(j.ended_at is not null) then format('job %s has ended', changed.job_id)
            when bool_or(j.owner <> before.owner) then format('job %s is another user''s', changed.job_id) end
        into wrong
        from pcfarm.job j where j.job_id = changed.job_id;
    elsif changed.template is not null and changed.template is distinct from before.template then
        -- Whoever removes it waits for this, or this for them; the next statement sees what came of it.
        perform from pcfarm.job_type t where t.name = changed.template ->> 'job_type' for key share;
        wrong := pcfarm.wrong_template(changed.template);
    end if;
    if changed.job_id is null and changed.template is null then
        wrong := 'there is nothing that it does';
    end if;
    if wrong is not null then
        raise exception 'schedule %: %', changed.name, wrong using errcode = 'invalid_parameter_value',
            hint = 'It needs "job", the id of an open job of the same user that is standing, or a "template" of jobs: '
                   '{"job_type": "…", "loads": [{"query": "select … as key, … as payload"}]}.';
    end if;
    return changed;
end $$;

-- What is wrong with a template, if anything is.
create function pcfarm.wrong_template(template jsonb)
returns text language plpgsql stable as $$
declare
    wrong text;
begin
    select string_agg(quote_literal(o.key), ', ') into wrong
    from jsonb_object_keys(template) as o(key)
    where o.key not in ('name', 'job_type', 'title', 'priority', 'deadline_after', 'parameters', 'require', 'loads');
    if wrong is not null then
        return 'no such option of a template: ' || wrong;
    elsif template ->> 'job_type' is null then
        return 'its template has no job_type';
    elsif not exists (select from pcfarm.job_type t where t.name = template ->> 'job_type') then
        return format('there is no job type %s', template ->> 'job_type');
    elsif (select t.read_role is null from pcfarm.job_type t where t.name = template ->> 'job_type') then
        return format('job type %s has no read_role, which load queries run as', template ->> 'job_type');
    elsif jsonb_typeof(template -> 'loads') is distinct from 'array' or jsonb_array_length(template -> 'loads') not between 1 and 20 then
        return 'its template has no loads: from 1 to 20 queries are wanted';
    elsif length(template ->> 'name') not between 1 and 200 then
        return 'the name of its jobs has not 1 to 200 characters';
    elsif jsonb_typeof(coalesce(template -> 'parameters', '{}')) <> 'object' then
        return 'the parameters of its template are no object';
    end if;
    select case
            when jsonb_typeof(l) <> 'object' or btrim(coalesce(l ->> 'query', '')) = '' then 'a load of its template has no query'
            when (l ->> 'convoy')::integer not between 1 and 100000 then 'a convoy holds from 1 to 100000 problems'
            when not pcfarm.schedule_load_time_limit(l) between interval '1 second' and interval '1 day'
                then 'the time limit of a load is from 1 second to 1 day'
            when exists (select from jsonb_object_keys(l) k where k not in ('query', 'convoy', 'time_limit'))
                then 'a load of its template has query, convoy and time_limit, and nothing else' end
    into wrong
    from jsonb_array_elements(template -> 'loads') l
    order by 1 nulls last limit 1;
    -- Found out now, and not at each trigger.
    perform (template ->> 'priority')::integer, (template ->> 'deadline_after')::interval, pcfarm.requirement(template -> 'require');
    return wrong;
end $$;

-- For whoever knows who the owner is.
create function pcfarm.add_schedule(owner name, name text, recurrence text, options jsonb)
returns bigint language plpgsql as $$
declare
    of_owner pcfarm.schedule;
    made     pcfarm.schedule;
begin
    of_owner.owner := add_schedule.owner;
    of_owner.name := add_schedule.name;
    of_owner.recurrence := btrim(add_schedule.recurrence);
    made := pcfarm.schedule_of(of_owner, options - 'name' - 'recurrence');
    insert into pcfarm.schedule (owner, name, description, recurrence, time_zone, starts_at, ends_at, enabled, catch_up,
        catch_up_limit, jitter_ms, payload, job_id, template)
    values (made.owner, made.name, made.description, made.recurrence, made.time_zone, made.starts_at, made.ends_at,
        made.enabled, made.catch_up, made.catch_up_limit, made.jitter_ms, made.payload, made.job_id, made.template)
    on conflict on constraint schedule_name_is_unique do nothing
    returning schedule_id into made.schedule_id;
    if made.schedule_id is null then
        raise exception 'user % has a schedule % already', made.owner, quote_literal(made.name)
            using errcode = 'unique_violation', hint = 'Update that one, or choose another name.';
    end if;
    insert into pcfarm.schedule_next (schedule_id, wake_at)
    values (made.schedule_id, case when made.enabled then clock_timestamp() end);
    perform pg_notify('pcfarm', 'schedule');
    return made.schedule_id;
end $$;

-- Changes what the options name, if the schedule is still of that version (null: whatever it is). Who is triggering it is
-- waited for, and what was due before the change is triggered all the same. Returns the new version; null: it is of another.
create function pcfarm.change_schedule(schedule bigint, version bigint, options jsonb)
returns bigint language plpgsql as $$
declare
    before pcfarm.schedule;
    after  pcfarm.schedule;
    moved  boolean;
begin
    -- First: this is what triggering locks, too.
    perform from pcfarm.schedule_next x where x.schedule_id = schedule for update;
    select s.* into before from pcfarm.schedule s where s.schedule_id = schedule for update;
    if not found then
        perform pcfarm.no_such_schedule(schedule::text);
    elsif before.version <> change_schedule.version then
        return null;
    end if;
    after := pcfarm.schedule_of(before, options);
    if after is not distinct from before then
        return before.version;
    end if;
    moved := (after.recurrence, after.time_zone, after.starts_at, after.ends_at, after.enabled, after.jitter_ms)
        is distinct from (before.recurrence, before.time_zone, before.starts_at, before.ends_at, before.enabled, before.jitter_ms);
    begin
        update pcfarm.schedule s
        set name = after.name, description = after.description, recurrence = after.recurrence, time_zone = after.time_zone,
            starts_at = after.starts_at, ends_at = after.ends_at, enabled = after.enabled, catch_up = after.catch_up,
            catch_up_limit = after.catch_up_limit, jitter_ms = after.jitter_ms, payload = after.payload, job_id = after.job_id,
            template = after.template, version = s.version + 1, changed_at = clock_timestamp(),
            error = case when moved then null else s.error end,
            anchored_at = case when moved then date_trunc('second', clock_timestamp()) else s.anchored_at end
        where s.schedule_id = schedule;
    exception when unique_violation then
        raise exception 'user % has a schedule % already', before.owner, quote_literal(after.name)
            using errcode = 'unique_violation', hint = 'Choose another name.';
    end;
    update pcfarm.schedule_next x
    set version = before.version + 1,
        -- A due time that has come and was not triggered yet stays, unless that is what the change is about.
        due_at = case when moved and not (after.enabled and x.due_at <= clock_timestamp()) then null else x.due_at end,
        wake_at = case when not after.enabled then null when moved then clock_timestamp() else x.wake_at end
    where x.schedule_id = schedule;
    if moved then
        perform pg_notify('pcfarm', 'schedule');
    end if;
    return before.version + 1;
end $$;

create function pcfarm.remove_schedule(schedule bigint, version bigint)
returns boolean language plpgsql as $$
begin
    perform from pcfarm.schedule_next x where x.schedule_id = schedule for update;
    delete from pcfarm.schedule s where s.schedule_id = schedule and s.version = coalesce(remove_schedule.version, s.version);
    if not found then
        if exists (select from pcfarm.schedule s where s.schedule_id = schedule) then
            return false;
        end if;
        perform pcfarm.no_such_schedule(schedule::text);
    end if;
    delete from pcfarm.schedule_next x where x.schedule_id = schedule;
    return true;
end $$;

-- Once more, now, whatever its times are; a job that it makes is traced as told. Returns the trigger's sequence number.
create function pcfarm.trigger_schedule_now(schedule bigint, traced_by text default null)
returns bigint language plpgsql as $$
declare
    held    pcfarm.schedule_next;
    outcome record;
    moment  timestamptz := clock_timestamp();
begin
    select x.* into held from pcfarm.schedule_next x where x.schedule_id = schedule for update;
    if not found then
        perform pcfarm.no_such_schedule(schedule::text);
    end if;
    select t.* into outcome
    from pcfarm.trigger_schedules(null, array[schedule], array[moment], array[schedule], array[held.sequence],
        array[1], array[moment], array[held.due_at], array[held.wake_at], traced_by) t;
    if outcome.postponed > 0 then
        raise exception 'somebody is changing the job of schedule %', schedule
            using errcode = 'lock_not_available', hint = 'Try again.';
    end if;
    return held.sequence + 1;
end $$;

-- A schedule by its name, for its owner, or by its id, also for administrators.
create function pcfarm.own_schedule(name text)
returns bigint language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id bigint;
begin
    select s.schedule_id into found_id from pcfarm.schedule s
    where case when own_schedule.name ~ '^[0-9]{1,18}$'
        then s.schedule_id = own_schedule.name::bigint and (s.owner = pcfarm.acting_user() or pcfarm.is_administrator())
        else s.owner = pcfarm.acting_user() and s.name = own_schedule.name end;
    if not found then
        perform pcfarm.no_such_schedule(quote_literal(own_schedule.name));
    end if;
    return found_id;
end $$;

create function pcfarm.create_schedule(name text, recurrence text, options jsonb)
returns bigint language sql security definer set search_path = pg_catalog, pg_temp as $$
    select pcfarm.check_transaction();
    select pcfarm.add_schedule(pcfarm.acting_user(), name, recurrence, options)
$$;
comment on function pcfarm.create_schedule is
    'Creates a schedule and returns its id. Recurrence: cron, ''every 15 minutes'' or ''once 2027-01-31T18:00''. Options: time_zone, '
    'starts_at, ends_at, enabled, catch_up (skip, once, all), catch_up_limit, jitter_ms, payload, description, and job (the id '
    'of a standing job) or template ({"job_type": …, "loads": [{"query": …}]}). A server computes its next time at once.';

create function pcfarm.update_schedule(name text, options jsonb)
returns bigint language sql security definer set search_path = pg_catalog, pg_temp as $$
    select pcfarm.check_transaction();
    select pcfarm.change_schedule(pcfarm.own_schedule(name), null, options)
$$;
comment on function pcfarm.update_schedule is 'Changes what the options name, as pcfarm.create_schedule takes them, or recurrence and '
    'name. {"enabled": false} stops it. Returns its version.';

create function pcfarm.delete_schedule(name text)
returns boolean language sql security definer set search_path = pg_catalog, pg_temp as $$
    select pcfarm.check_transaction();
    select pcfarm.remove_schedule(pcfarm.own_schedule(name), null)
$$;
comment on function pcfarm.delete_schedule is 'Removes a schedule. What it has enqueued stays.';

create function pcfarm.trigger_schedule(name text)
returns bigint language sql security definer set search_path = pg_catalog, pg_temp as $$
    select pcfarm.check_transaction();
    select pcfarm.trigger_schedule_now(pcfarm.own_schedule(name))
$$;
comment on function pcfarm.trigger_schedule is 'Triggers a schedule once more, now. Returns the trigger''s sequence number.';

-- The newest first, from before a sequence number on.
create function pcfarm.schedule_triggers(schedule bigint, before bigint, most integer)
returns table (sequence bigint, due_at timestamptz, triggered_at timestamptz, job_id bigint, problem_id bigint, refusal text,
    server_id bigint)
language plpgsql stable as $$
declare
    next_tick bigint := (select x.last_tick from pcfarm.schedule_next x where x.schedule_id = schedule);
    tick      pcfarm.schedule_tick;
    found_n   integer := 0;
    place     integer;
begin
    while found_n < most and next_tick is not null loop
        select t.* into tick from pcfarm.schedule_tick t where t.tick_id = next_tick;
        exit when not found;
        next_tick := null;
        foreach place in array array(
            select u.n from unnest(tick.schedule_ids) with ordinality as u(id, n) where u.id = schedule order by u.n desc)
        loop
            next_tick := tick.previous[place];
            if before is null or tick.sequences[place] < before then
                found_n := found_n + 1;
                exit when found_n > most;
                sequence := tick.sequences[place];
                due_at := tick.due_ats[place];
                triggered_at := tick.ticked_at;
                job_id := tick.job_ids[place];
                problem_id := tick.problem_ids[place];
                refusal := tick.refusals[place];
                server_id := tick.server_id;
                return next;
            end if;
        end loop;
    end loop;
end $$;

create function pcfarm.schedule_history(name text, most integer default 100)
returns table (sequence bigint, due_at timestamptz, triggered_at timestamptz, lateness interval, job_id bigint, problem_id bigint,
    refusal text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select t.sequence, t.due_at, t.triggered_at, t.triggered_at - t.due_at, t.job_id, t.problem_id, t.refusal
    from pcfarm.schedule_triggers(pcfarm.own_schedule(name), null, most) t
$$;
comment on function pcfarm.schedule_history is 'What a schedule has triggered, the newest first.';

create view pcfarm.schedule_status with (security_barrier) as
select s.schedule_id, s.owner, s.name, s.description, s.recurrence, s.time_zone,
    case when s.error is not null then 'broken' when not s.enabled then 'disabled'
        when x.due_at is null and x.wake_at is null then 'ended' else 'active' end as state,
    s.error, x.due_at as next_due_at, x.wake_at as next_trigger_at, x.sequence as triggers, x.last_due_at, x.last_triggered_at,
    s.starts_at, s.ends_at, s.catch_up, s.catch_up_limit, s.jitter_ms, s.payload, s.job_id, s.template, s.version, s.created_at,
    s.changed_at
from pcfarm.schedule s
join pcfarm.schedule_next x on x.schedule_id = s.schedule_id
where s.owner = pcfarm.acting_user() or pcfarm.is_administrator();
comment on view pcfarm.schedule_status is 'Schedules; everybody sees their own, administrators all.';

do $$
declare
    f record;
begin
    if exists (select from pg_roles where rolname = 'pcfarm_loader') then
        grant select on pcfarm.schedule_status to pcfarm_loader;
    end if;
    for f in
        select p.oid::regprocedure as signature, p.proname
        from pg_proc p where p.pronamespace = 'pcfarm'::regnamespace and p.proname ~ 'schedule|wrong_template'
    loop
        execute format('revoke all on routine %s from public', f.signature);
        if f.proname in ('create_schedule', 'update_schedule', 'delete_schedule', 'trigger_schedule', 'schedule_history')
            and exists (select from pg_roles where rolname = 'pcfarm_loader')
        then
            execute format('grant execute on routine %s to pcfarm_loader', f.signature);
        end if;
    end loop;
end $$;
