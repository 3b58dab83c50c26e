-- Loading with SQL: what people call. Job types, jobs, loads, and a job's life.
--
-- Bulk statements run when the planner's statistics do not include the rows that they are about: the planner expects one row
-- and finds a million. Their cost grows with the number of rows under every estimate, by these rules:
--
--   * Rows of one set that belong together are found by window functions, not by a join of the set with itself.
--   * Rows of two sets are matched by hash: the function has `set enable_nestloop = off`.
--   * A row of a table is looked up by its key, with `cross join lateral (select … offset 0)` or a scalar subquery: the planner
--     can neither reorder nor flatten these. The function has `set enable_seqscan = off`. A join or EXISTS would, without nested
--     loops, read the whole table with its history.
--   * Switched-off plan nodes have enormous costs, for which the compiler would start: `set jit = off`.
--
-- sql/tests/it/growth.rs counts the rows and blocks that each of them touches.

-- Job types -------------------------------------------------------------------------------------------------

-- A JSON array of texts; none if there is nothing.
create function pcfarm.texts_of(given jsonb, what text)
returns text[] language plpgsql immutable as $$
begin
    if jsonb_typeof(coalesce(given, 'null')) not in ('array', 'null') or exists (
        select from jsonb_array_elements(case jsonb_typeof(given) when 'array' then given else '[]' end) e
        where jsonb_typeof(e) <> 'string' or length(e #>> '{}') not between 1 and 63)
    then
        raise exception '%: a list of names is wanted, and not %', what, given
            using errcode = 'invalid_parameter_value', constraint = what,
                  hint = 'It is like ["one", "two"]; a name has at most 63 letters.';
    end if;
    return array(select distinct e from jsonb_array_elements_text(
        case jsonb_typeof(given) when 'array' then given else '[]' end) e order by e);
end $$;

create function pcfarm.create_job_type(name text, controller text, options jsonb default '{}')
returns void language plpgsql as $$
declare
    unknown text;
    before  pcfarm.job_type;
begin
    perform pcfarm.check_transaction();
    select string_agg(quote_literal(o.key), ', ') into unknown
    from jsonb_object_keys(coalesce(options, '{}')) as o(key)
    where o.key not in ('description', 'default_priority', 'default_duration', 'max_attempts', 'retry_delay',
                        'retry_delay_limit', 'time_limit', 'retry_first', 'keep_results', 'resources', 'labels', 'require', 'retention',
                        'read_role', 'read_time_limit', 'write_role');
    if unknown is not null then
        raise exception 'job type %: no such option: %', create_job_type.name, unknown
            using errcode = 'invalid_parameter_value',
                  hint = 'Options are description, default_priority, default_duration, max_attempts, retry_delay, '
                         'retry_delay_limit, time_limit, retry_first, keep_results, resources, labels, require, retention, '
                         'read_role, read_time_limit and write_role.';
    end if;
    select t.* into before from pcfarm.job_type t where t.name = create_job_type.name for update;
    if options ->> 'read_role' is null
        and exists (select from pcfarm.related_read r where r.job_type = create_job_type.name)
    then
        raise exception 'job type % has related reads, but no read_role now', create_job_type.name
            using errcode = 'invalid_parameter_value',
                  hint = format('Name a read_role (it was %s), or remove the reads first: pcfarm.set_related_read(%L, '
                                'name, null).', before.read_role, create_job_type.name);
    elsif options ->> 'write_role' is null and before.write_back is not null then
        raise exception 'job type % has a write-back, but no write_role now', create_job_type.name
            using errcode = 'invalid_parameter_value',
                  hint = format('Name a write_role (it was %s), or remove the write-back first: '
                                'pcfarm.set_write_back(%L, null).', before.write_role, create_job_type.name);
    end if;
    insert into pcfarm.job_type as t (name, controller, description, default_priority, default_duration,
        max_attempts, retry_delay, retry_delay_limit, time_limit, retry_first, keep_results, labels, requirement, retention,
        read_role, read_time_limit, write_role)
    values (create_job_type.name, create_job_type.controller,
        coalesce(options ->> 'description', ''),
        coalesce((options ->> 'default_priority')::integer, 0),
        (options ->> 'default_duration')::interval,
        coalesce((options ->> 'max_attempts')::integer, 3),
        (options ->> 'retry_delay')::interval,
        coalesce((options ->> 'retry_delay_limit')::interval, interval '1 hour'),
        (options ->> 'time_limit')::interval,
        coalesce((options ->> 'retry_first')::boolean, false),
        coalesce((options ->> 'keep_results')::boolean, true),
        pcfarm.texts_of(options -> 'labels', 'labels'),
        pcfarm.requirement(options -> 'require'),
        (options ->> 'retention')::interval,
        options ->> 'read_role',
        coalesce((options ->> 'read_time_limit')::interval, interval '30 seconds'),
        options ->> 'write_role')
    on conflict on constraint job_type_pkey do update set
        controller = excluded.controller, description = excluded.description,
        default_priority = excluded.default_priority, default_duration = excluded.default_duration,
        max_attempts = excluded.max_attempts, retry_delay = excluded.retry_delay,
        retry_delay_limit = excluded.retry_delay_limit, time_limit = excluded.time_limit, retry_first = excluded.retry_first,
        keep_results = excluded.keep_results, labels = excluded.labels, requirement = excluded.requirement, retention = excluded.retention,
        read_role = excluded.read_role, read_time_limit = excluded.read_time_limit,
        write_role = excluded.write_role;
    perform pcfarm.set_job_type_resources(create_job_type.name, options -> 'resources');
    -- Its function belongs to the role whose rights it has.
    if before.write_back is not null and options ->> 'write_role' <> before.write_role then
        perform pcfarm.set_write_back(create_job_type.name, before.write_back);
    end if;
    perform pg_notify('pcfarm', 'job_type');
end $$;
comment on function pcfarm.create_job_type is
    'Defines a job type, or defines it anew. Its related reads and write-back are kept.';

create function pcfarm.set_related_read(job_type text, name text, query text)
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    perform pcfarm.job_type_must_exist(set_related_read.job_type);
    if (select t.read_role is null from pcfarm.job_type t where t.name = set_related_read.job_type) then
        raise exception 'job type % has no read_role', set_related_read.job_type
            using errcode = 'invalid_parameter_value',
                  hint = 'Create a login role, grant it SELECT on what the query reads, and name it as read_role '
                         'in the options of pcfarm.create_job_type.';
    end if;
    if set_related_read.query is null then
        delete from pcfarm.related_read r
        where r.job_type = set_related_read.job_type and r.name = set_related_read.name;
    else
        insert into pcfarm.related_read as r (job_type, name, query)
        values (set_related_read.job_type, set_related_read.name, set_related_read.query)
        on conflict on constraint related_read_pkey do update set query = excluded.query;
    end if;
    perform pg_notify('pcfarm', 'job_type');
end $$;
comment on function pcfarm.set_related_read is
    'A query that runs once per checkout with $1 text[], the keys of its problems. It returns a column key text '
    '(null: for every problem) and what the controller needs. A null query removes the read.';

-- Write-back must share the accepting transaction, where the server's rights are in force: so it is a function
-- that runs with the rights of the job type's own role, and of nobody else.
create schema pcfarm_write_back;
revoke all on schema pcfarm_write_back from public;

create function pcfarm.set_write_back(job_type text, statement text)
returns void language plpgsql as $$
declare
    role name;
begin
    perform pcfarm.check_transaction();
    perform pcfarm.job_type_must_exist(set_write_back.job_type);
    select t.write_role into role from pcfarm.job_type t where t.name = set_write_back.job_type;
    execute format('drop function if exists pcfarm_write_back.%I(text[], jsonb[])', set_write_back.job_type);
    if statement is not null then
        if role is null then
            raise exception 'job type % has no write_role', set_write_back.job_type
                using errcode = 'invalid_parameter_value',
                      hint = 'Create a NOLOGIN role, grant it what the statement needs, and name it as write_role '
                             'in the options of pcfarm.create_job_type.';
        end if;
        -- Deferred triggers fire with the rights of whoever is in force then: so here, not at commit.
        execute format(
            'create function pcfarm_write_back.%I(keys text[], solutions jsonb[]) returns void '
            'language sql security definer set search_path = pg_catalog, pg_temp as %L',
            set_write_back.job_type, statement || E'\n;\nset constraints all immediate');
        execute format('revoke all on function pcfarm_write_back.%I(text[], jsonb[]) from public',
            set_write_back.job_type);
        -- Only whoever may hand something to that role gets past this line.
        execute format('grant create on schema pcfarm_write_back to %I', role);
        begin
            execute format('alter function pcfarm_write_back.%I(text[], jsonb[]) owner to %I',
                set_write_back.job_type, role);
        exception
            when insufficient_privilege then
                raise exception 'role % may not hand a function to role %', current_user, role
                    using errcode = 'insufficient_privilege',
                          hint = format('Let an administrator of that role run: grant %I to %I;', role, current_user);
        end;
        execute format('revoke create on schema pcfarm_write_back from %I', role);
        execute format('grant execute on function pcfarm_write_back.%I(text[], jsonb[]) to %s',
            set_write_back.job_type, (select nspowner::regrole::text from pg_namespace where nspname = 'pcfarm'));
    end if;
    update pcfarm.job_type t set write_back = statement where t.name = set_write_back.job_type;
    perform pg_notify('pcfarm', 'job_type');
end $$;
comment on function pcfarm.set_write_back is
    'A statement that runs in the transaction that accepts results, with $1 text[], their problems'' keys, and '
    '$2 jsonb[], their solutions, in the same order. It runs with the rights of the job type''s write_role alone. '
    'Null removes it.';

create function pcfarm.job_type_must_exist(job_type text)
returns void language plpgsql stable as $$
begin
    if not exists (select from pcfarm.job_type t where t.name = job_type_must_exist.job_type) then
        raise exception 'there is no job type %', coalesce(quote_literal(job_type_must_exist.job_type), 'null')
            using errcode = 'undefined_object',
                  hint = coalesce('Job types are: '
                         || (select string_agg(t.name, ', ' order by t.name) from pcfarm.job_type t)
                         || '. ', 'There are none yet. ')
                         || 'Create one with `pcfarm types set` or pcfarm.create_job_type(name, controller, options).';
    end if;
end $$;

-- Jobs ------------------------------------------------------------------------------------------------------

-- As pcfarm.create_job. With `open` a new job is open from the start, for whoever loads it in the same transaction: a quarter
-- less than to open it afterwards.
create function pcfarm.make_job(name text, job_type text, options jsonb, open boolean)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    unknown   text;
    created   bigint;
    -- Its owner has had one before.
    is_known  boolean := false;
    first     pcfarm.job;
    asked_for jsonb;
begin
    perform pcfarm.check_transaction();
    if jsonb_typeof(coalesce(options, '{}')) <> 'object' then
        raise exception 'options must be a JSON object' using errcode = 'invalid_parameter_value';
    end if;
    if options <> '{}' then
        -- Of its alerts, which have secrets, a hash. A repetition is traced as what it is.
        asked_for := jsonb_build_object('name', make_job.name, 'job_type', make_job.job_type,
            'options', options - 'trace_parent' || case when options ? 'alerts' then jsonb_build_object('alerts',
                encode(sha256(convert_to(options ->> 'alerts', 'UTF8')), 'hex')) else '{}' end);
        select string_agg(quote_literal(o.key), ', ') into unknown
        from jsonb_object_keys(options) as o(key)
        where o.key not in ('title', 'priority', 'deadline', 'not_before', 'standing', 'parameters',
                            'idempotency_key', 'idempotency_digest', 'unique_key', 'on_duplicate', 'after', 'after_ended',
                            'info', 'files', 'problem_files', 'alerts', 'require', 'trace_parent');
    end if;
    if unknown is not null then
        raise exception 'job %: no such option: %', make_job.name, unknown
            using errcode = 'invalid_parameter_value',
                  hint = 'Options are title, priority, deadline, not_before, standing, parameters, info, files (names and hashes), '
                         'problem_files (true: payloads have such, too, under "files"), '
                         'require (conditions on workstations), '
                         'after and after_ended (ids of jobs), alerts (as pcfarm.subscribe takes them), unique_key, on_duplicate, '
                         'trace_parent (as W3C''s Trace Context has it), '
                         'idempotency_key and idempotency_digest (of what else a repetition must have equal).';
    end if;
    if coalesce(options ->> 'on_duplicate', 'return') not in ('return', 'refuse') then
        raise exception 'job %: on_duplicate is %', make_job.name, options -> 'on_duplicate'
            using errcode = 'invalid_parameter_value',
                  hint = 'It is "return", for the first job of that unique_key, or "refuse".';
    end if;
    insert into pcfarm.job as j (name, job_type, title, priority, deadline, not_before, standing, parameters, problem_files, requirement,
        idempotency_key, submitted, unique_key, trace_parent, created_at, state, opened_at)
    select make_job.name, t.name, coalesce(options ->> 'title', ''),
        coalesce((options ->> 'priority')::integer, t.default_priority),
        coalesce((options ->> 'deadline')::timestamptz, clock_timestamp() + t.default_duration),
        (options ->> 'not_before')::timestamptz,
        coalesce((options ->> 'standing')::boolean, false),
        options -> 'parameters', coalesce((options ->> 'problem_files')::boolean, false),
        case when options ? 'require' then pcfarm.requirement(options -> 'require') end,
        options ->> 'idempotency_key',
        case when options ? 'idempotency_key' then asked_for end, options ->> 'unique_key', options ->> 'trace_parent',
        moment, case when open then 'open' else 'loading' end, case when open then moment end
    from pcfarm.job_type t cross join clock_timestamp() as moment
    where t.name = make_job.job_type
    on conflict do nothing
    returning j.job_id, exists (select from pcfarm.farm_user u where u.name = j.owner) into created, is_known;
    if created is null then
        perform pcfarm.job_type_must_exist(make_job.job_type);
    end if;
    if created is not null and options <> '{}' then
        if options ? 'info' then
            insert into pcfarm.job_info (job_id, info) values (created, options -> 'info');
        end if;
        if options ? 'files' then
            perform pcfarm.set_job_files(created, options -> 'files');
        end if;
        -- Nothing can run after a job that is not there yet: no circle to look for.
        insert into pcfarm.job_after as a (job_id, after_job, ended)
        select created, o.job::bigint, bool_or(o.ended)
        from (
            select jsonb_array_elements_text(options -> 'after') as job, false as ended where options ? 'after'
            union all
            select jsonb_array_elements_text(options -> 'after_ended'), true where options ? 'after_ended') o
        group by o.job::bigint;
        perform pcfarm.no_such_job(a.after_job) from pcfarm.job_after a
        where a.job_id = created
            and not exists (select from pcfarm.job j where j.job_id = a.after_job and pcfarm.sees(j.owner));
        if options ? 'alerts' then
            perform pcfarm.subscribe_to_job(created, options -> 'alerts');
        end if;
    end if;
    -- Whoever hands out under a limit locks this row, so it has to be there.
    if is_known is distinct from true then
        insert into pcfarm.farm_user (name) values (pcfarm.acting_user()) on conflict do nothing;
    end if;
    if created is null then
        select j.* into first from pcfarm.job j
        where j.owner = pcfarm.acting_user() and j.idempotency_key = options ->> 'idempotency_key';
        if not found then
            select j.* into strict first from pcfarm.job j
            where j.owner = pcfarm.acting_user() and j.unique_key = options ->> 'unique_key';
            if options ->> 'on_duplicate' = 'refuse' then
                raise exception 'there is a job of unique key % already: job % (%)', quote_literal(first.unique_key),
                        first.job_id, first.state
                    using errcode = 'unique_violation', hint = 'Without on_duplicate "refuse" that job is returned.';
            end if;
            return first.job_id;
        end if;
        -- A job created empty has no digest yet, and may be submitted under its key.
        if first.submitted #- '{options,idempotency_digest}' <> asked_for #- '{options,idempotency_digest}'
            or first.submitted #> '{options,idempotency_digest}' <> asked_for #> '{options,idempotency_digest}'
        then
            raise exception 'idempotency key % was used for job %, which is a different one',
                    quote_literal(first.idempotency_key), first.job_id
                using errcode = 'unique_violation',
                      detail = format('First: %s. Now: %s.', first.submitted, asked_for),
                      hint = 'Use a new key for a new job.';
        end if;
        return first.job_id;
    end if;
    return created;
end $$;

create function pcfarm.create_job(name text, job_type text, options jsonb default '{}')
returns bigint language sql security definer set search_path = pg_catalog, pg_temp as $$
    select pcfarm.make_job(name, job_type, options, false)
$$;
comment on function pcfarm.create_job is
    'Creates a job in state loading and returns its id. With the idempotency_key, or the unique_key, of an earlier call: '
    'that job.';

-- One at a time: of two that close a circle together neither would see the other's half.
create function pcfarm.run_after(job bigint, after_job bigint, ended boolean default false)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    state text;
begin
    perform pcfarm.check_transaction();
    state := (pcfarm.lock_job(job)).state;
    perform pg_advisory_xact_lock(hashtextextended('pcfarm.run_after', 0));
    if state in ('done', 'failed', 'cancelled') then
        raise exception 'job % has ended (%)', job, state
            using errcode = 'object_not_in_prerequisite_state', hint = 'Only what has not ended can wait.';
    end if;
    if not exists (select from pcfarm.job j where j.job_id = run_after.after_job) then
        perform pcfarm.no_such_job(after_job);
    end if;
    if after_job = job or exists (
        with recursive before as (
            select a.after_job from pcfarm.job_after a where a.job_id = run_after.after_job
            union
            select a.after_job from before b join pcfarm.job_after a on a.job_id = b.after_job)
        select from before b where b.after_job = job)
    then
        raise exception 'job % cannot run after job %, which itself runs after it', job, after_job
            using errcode = 'invalid_parameter_value', hint = 'See pcfarm.job_after.';
    end if;
    insert into pcfarm.job_after as a (job_id, after_job, ended) values (job, run_after.after_job, run_after.ended)
    on conflict on constraint job_after_pkey do update set ended = excluded.ended;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.run_after is
    'Hands out nothing of a job until another is done or, with ended => true, has ended in any way. Circles are refused.';

-- Jobs that it still waits for.
create function pcfarm.waits_for(job bigint)
returns setof pcfarm.job language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select j.* from pcfarm.job_after a
    join pcfarm.job j on j.job_id = a.after_job
    where a.job_id = waits_for.job and j.state <> 'done' and not (a.ended and j.ended_at is not null)
$$;

create function pcfarm.no_such_job(job bigint)
returns void language plpgsql immutable as $$
begin
    raise exception 'there is no job %', coalesce(job::text, 'null')
        using errcode = 'no_data_found', hint = 'See pcfarm.jobs_ordered and pcfarm.job_progress.';
end $$;

-- The job under a lock that holds off whoever wants to change its state. Loaders share this lock, and do not wait
-- for each other.
create function pcfarm.lock_for_loading(job bigint)
returns pcfarm.job language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    locked pcfarm.job;
begin
    perform pcfarm.check_transaction();
    select j.* into locked from pcfarm.job j where j.job_id = job and pcfarm.sees(j.owner) for share;
    if not found then
        perform pcfarm.no_such_job(job);
    elsif locked.state in ('done', 'failed', 'cancelled') then
        raise exception 'job % has ended (%)', job, locked.state
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Create a new job. One that shall take problems after it has run empty needs '
                         '"standing": true in its options.';
    end if;
    return locked;
end $$;

-- Greedy packing: groups in order, as many as fit, never split. A group above the size is a convoy by itself. The state is
-- one number, since there is a call for each group of a load: convoy * 2^20 + the number of problems in it. A null number of
-- members belongs to a group that was packed before.
create function pcfarm.pack_step(state bigint, members bigint, size bigint)
returns bigint language plpgsql immutable as $$
begin
    return case
        when members is null then state
        when state is null then least(members, 1048575)
        when (state & 1048575) + members <= size then state + members
        else (((state >> 20) + 1) << 20) + least(members, 1048575)
    end;
end $$;

create aggregate pcfarm.pack(members bigint, size bigint) (sfunc = pcfarm.pack_step, stype = bigint);
comment on aggregate pcfarm.pack(bigint, bigint) is 'Shifted right by 20, the convoy of the group that came last.';

create function pcfarm.convoy_is_too_large(job bigint, batch_order bigint, problems bigint)
returns bigint language plpgsql immutable as $$
begin
    raise exception 'job %: batch order % holds % problems', job, batch_order, problems
        using errcode = 'program_limit_exceeded',
              hint = 'A convoy holds at most 100000 problems. Let the query''s group_key be something finer.';
end $$;

create function pcfarm.convoy_must_be_sensible(convoy integer)
returns void language plpgsql immutable as $$
begin
    if convoy is null or convoy not between 1 and 100000 then
        raise exception 'a convoy of % problems', coalesce(convoy::text, 'null')
            using errcode = 'invalid_parameter_value', hint = 'A convoy holds from 1 to 100000 problems.';
    end if;
end $$;

-- What is handed out at once must fit into a server. Of batch orders of one's own; in the index's order, whatever the
-- statistics.
create function pcfarm.convoys_must_be_bounded(job bigint)
returns void language plpgsql set enable_seqscan = off as $$
declare
    largest record;
begin
    select p.batch_order, count(*) as problems into largest from pcfarm.problem p
    where p.job_id = job and p.lane_id = 0
    group by p.batch_order having count(*) > 100000 order by p.batch_order limit 1;
    if found then
        raise exception 'job %: batch order % holds % problems', job, largest.batch_order, largest.problems
            using errcode = 'program_limit_exceeded',
                  hint = 'A convoy holds at most 100000 problems. Give its problems more than one batch order, or let '
                         'pcfarm.assign_batch_order group by something finer.';
    end if;
end $$;

-- A lane that a load has filled. No job type: its job's.
create type pcfarm.packed_lane as (
    lane_id bigint, job_type text, priority integer, later boolean, problems bigint, orders bigint);

create function pcfarm.load(job bigint, query text, convoy integer default 100)
returns bigint language plpgsql as $$
declare
    lane     bigint;
    loaded   bigint;
    columns  text[];
    grouped  boolean;
    seen     text;
    of_table text;
    lanes    pcfarm.packed_lane[];
begin
    perform pcfarm.check_transaction();
    -- Refused before the query runs, and locked only after it has.
    perform pcfarm.check_loadable(job);
    perform pcfarm.convoy_must_be_sensible(convoy);
    if query is null or btrim(query) = '' then
        raise exception 'the query is empty' using errcode = 'invalid_parameter_value',
            hint = 'It returns key text, payload jsonb and optionally group_key text, priority integer, '
                   'deadline timestamptz, job_type text, not_before timestamptz, weight integer.';
    end if;
    -- A semicolon at the end, with or without a remark behind it.
    query := regexp_replace(query, E';(\\s|--[^\\n'']*(\\n|$))*$', '');
    columns := pcfarm.load_columns(query);
    grouped := 'group_key' = any (columns);
    begin
        if columns && array['priority', 'job_type', 'not_before'] or columns @> array['group_key', 'deadline'] then
            execute format($q$
                create temporary table pcfarm_staged on commit drop as
                select n.number, coalesce('g' || n.group_key, 'r' || n.number) as member_of, n.key, n.payload, n.job_type,
                    coalesce(n.priority, 0) as priority, n.deadline, n.not_before, n.weight
                from (select row_number() over () as number, q.key::text, q.payload::jsonb, %s as group_key,
                          %s as job_type, %s as priority, %s as deadline, %s as not_before, %s as weight
                      from (%s
                      ) q) n$q$,
                pcfarm.load_column(columns, 'group_key', 'text'), pcfarm.load_column(columns, 'job_type', 'text'),
                pcfarm.load_column(columns, 'priority', 'integer'), pcfarm.load_column(columns, 'deadline', 'timestamptz'),
                pcfarm.load_column(columns, 'not_before', 'timestamptz'), pcfarm.load_column(columns, 'weight', 'integer'),
                query);
            lanes := pcfarm.pack_staged(job, convoy, grouped);
            select coalesce(sum(l.problems), 0) into loaded from unnest(lanes) l;
            drop table pg_temp.pcfarm_staged;
        elsif grouped then
            lanes := array[pcfarm.pack_groups(job, nextval('pcfarm.lane_number'), convoy, format($q$materialized (
                select n.number, coalesce('g' || n.group_key, 'r' || n.number) as member_of, n.key, n.payload, n.weight
                from (select row_number() over () as number, q.*
                      from (select q.key::text, q.payload::jsonb, %s as group_key, %s as weight
                            from (%s
                            ) q
                            union all
                            select * from pcfarm.no_problems()) q) n)$q$,
                pcfarm.load_column(columns, 'group_key', 'text'), pcfarm.load_column(columns, 'weight', 'integer'), query))];
            loaded := lanes[1].problems;
        else
            lane := nextval('pcfarm.lane_number');
            -- Without an order asked for by a column, rows keep the order in which the query returns them, which is
            -- their physical order for a plain scan: a convoy's rows share blocks.
            execute format($q$
                insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload, weight)
                select $1, $2, $3 + n.number, (n.number - 1) / $4, n.key, n.payload, n.weight
                from (select q.key::text, q.payload::jsonb, %s as weight, row_number() over (%s) as number
                      from (%s
                      ) q) n$q$,
                pcfarm.load_column(columns, 'weight', 'integer'),
                case when 'deadline' = any (columns) then 'order by q.deadline asc nulls last' end, query)
                using job, lane, lane * 10000000000, convoy::bigint;
            get diagnostics loaded = row_count;
            lanes := array[(lane, null, 0, false, loaded, (loaded + convoy - 1) / convoy)::pcfarm.packed_lane];
        end if;
    exception when not_null_violation then
        get stacked diagnostics of_table = table_name, seen = column_name;
        if of_table is distinct from 'problem' or seen not in ('key', 'payload') then
            raise;
        end if;
        raise exception 'the query returned a row without a %', seen using errcode = 'not_null_violation',
            hint = 'Every problem has a key and a payload. Where there is nothing to say, let the payload be ''null''::jsonb '
                   'or ''{}''::jsonb.';
    end;
    perform pcfarm.analyze_after_load(loaded);
    perform pcfarm.register_lanes(job, lanes, grouped);
    return loaded;
end $$;
comment on function pcfarm.load is
    'Loads what the query returns (key text, payload jsonb, optionally group_key text, priority integer, deadline '
    'timestamptz, job_type text, not_before timestamptz, weight integer) in convoys of so many problems, with the '
    'caller''s rights, in one pass. Returns problems loaded.';

-- A column of a load query, or nothing of its type.
create function pcfarm.load_column(columns text[], name text, type text)
returns text language sql immutable as $$
    select case when name = any (columns) then format('q.%I::%s', name, type) else 'null::' || type end
$$;

create function pcfarm.check_loadable(job bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_state text;
begin
    perform pcfarm.check_transaction();
    select j.state into found_state from pcfarm.job j where j.job_id = job and pcfarm.sees(j.owner);
    if found_state is null or found_state in ('done', 'failed', 'cancelled') then
        perform pcfarm.lock_for_loading(job);
    end if;
end $$;

-- The columns of a load query, by asking PostgreSQL. A query that is not one SELECT fails here.
create function pcfarm.load_columns(query text)
returns text[] language plpgsql as $$
declare
    found_columns text[];
    wrong         text;
begin
    execute format(E'create temporary view pcfarm_load_query as select * from (%s\n) q', query);
    select array_agg(a.attname::text),
        string_agg(format('%s is %s, not %s', a.attname, format_type(a.atttypid, a.atttypmod), w.wanted), '; ')
            filter (where w.wanted is not null and not (a.atttypid = any (w.accepted::regtype[]::oid[])))
    into found_columns, wrong
    from pg_attribute a
    left join (values
        ('payload', 'jsonb', array['jsonb', 'json']),
        ('priority', 'integer', array['integer', 'smallint', 'bigint']),
        ('deadline', 'timestamptz', array['timestamp with time zone']),
        ('not_before', 'timestamptz', array['timestamp with time zone']),
        ('weight', 'integer', array['integer', 'smallint', 'bigint'])
    ) as w(name, wanted, accepted) on w.name = a.attname
    where a.attrelid = 'pg_temp.pcfarm_load_query'::regclass and a.attnum > 0;
    drop view pg_temp.pcfarm_load_query;
    if not coalesce(found_columns @> array['key', 'payload'], false) then
        raise exception 'the query returns %, but not key and payload', array_to_string(found_columns, ', ')
            using errcode = 'invalid_parameter_value',
                  hint = 'For example: select flight_id::text as key, to_jsonb(f) as payload from flight f';
    elsif wrong is not null then
        raise exception 'the query''s column %', wrong
            using errcode = 'datatype_mismatch', hint = 'Cast it, or use to_jsonb(...) for a payload.';
    end if;
    return found_columns;
end $$;

-- Nothing, of which a thousand rows are expected. What is grouped and joined is hashed for that: a query of which one row is
-- expected, and which returns a million, would have each row compared with each group.
create function pcfarm.no_problems()
returns table (key text, payload jsonb, group_key text, weight integer) language plpgsql rows 1000 as $$
begin
end $$;

-- Puts what there is to load into one lane. Convoys are whole groups, each at the place of its first row. What there is, is
-- SQL that stands behind `with given as`, and has the columns number, member_of, key, payload and weight. Who writes it makes
-- member_of of 'g' and a row's group key; or, of a row that is a group by itself, of 'r' and its number.
create function pcfarm.pack_groups(job bigint, lane bigint, convoy integer, given text)
returns pcfarm.packed_lane language plpgsql as $$
declare
    packed pcfarm.packed_lane;
begin
    execute format($q$
        with given as %s,
        groups as (
            select g.member_of, min(g.number) as first, count(*) as members from given g group by g.member_of),
        counted as (
            select g.*, pcfarm.pack(g.members, $3) over (order by g.first) >> 20 as batch_order from groups g),
        placed as (
            select c.member_of, c.first, c.members,
                case when c.members <= 100000 then c.batch_order
                    else pcfarm.convoy_is_too_large($1, c.batch_order, c.members) end as batch_order
            from counted c),
        numbered as (
            select row_number() over (order by p.first, g.number) as place, p.batch_order, g.key, g.payload, g.weight,
                p.first, g.number
            from given g
            join placed p on p.member_of = g.member_of),
        stored as (
            insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload, weight)
            select $1, $2, $2 * 10000000000 + n.place, n.batch_order, n.key, n.payload, n.weight
            from numbered n
            -- As they were numbered, which is sorting them once, with their payloads. A lane before these two would make
            -- that sort half a second slower with a million of them.
            order by n.first, n.number)
        select coalesce(sum(p.members), 0)::bigint, coalesce(max(p.batch_order) + 1, 0) from placed p$q$, given)
    into packed.problems, packed.orders
    using job, lane, convoy::bigint;
    packed.lane_id := lane;
    packed.priority := 0;
    packed.later := false;
    return packed;
end $$;

-- Puts what waits in pcfarm_staged into its lanes: one for each job type and priority, and one beside it for what may not be
-- handed out yet. Convoys are whole groups, each at the place of its first row in the order of priority, deadline and number.
-- A group's members of different job types are in different lanes, and the highest priority of a group is that of all its
-- members, as the latest time is.
--
-- Nothing is known about that table, and the number of groups cannot be guessed: groups are hashed whatever the planner
-- thinks, since anything else sorts all payloads by their group keys first.
create function pcfarm.pack_staged(job bigint, convoy integer, grouped boolean)
returns pcfarm.packed_lane[] language plpgsql
set work_mem = '16MB' set enable_mergejoin = off set enable_nestloop = off as $$
declare
    own_type   text := (select j.job_type from pcfarm.job j where j.job_id = job);
    moment     timestamptz := clock_timestamp();
    types      text[];
    priorities integer[];
    unknown    text;
    is_ordered boolean;
    any_later  boolean;
    soon       bigint[];
    later      bigint[];
    packed     pcfarm.packed_lane[];
begin
    select array_agg(k.job_type order by k.priority desc, k.job_type), array_agg(k.priority order by k.priority desc, k.job_type),
        bool_or(k.is_due) or min(k.priority) <> max(k.priority), bool_or(k.is_later)
    into types, priorities, is_ordered, any_later
    from (
        select o.job_type, o.priority, bool_or(o.is_due) as is_due, bool_or(o.is_later) as is_later
        from (
            select coalesce(s.job_type, own_type) as job_type, s.priority,
                bool_or(s.deadline is not null) as is_due,
                coalesce(bool_or(s.not_before > moment), false) as is_later
            from pg_temp.pcfarm_staged s
            where s.job_type is not null or s.priority <> 0 or s.deadline is not null or s.not_before is not null
            group by 1, 2
            union all
            -- What nothing is said of, which is most of most loads.
            select own_type, 0, false, false
            where exists (select from pg_temp.pcfarm_staged s where s.job_type is null and s.priority = 0)) o
        group by o.job_type, o.priority) k;
    if types is null then
        return '{}';
    end if;
    select string_agg(distinct quote_literal(t), ', ') into unknown
    from unnest(types) t where not exists (select from pcfarm.job_type j where j.name = t);
    if unknown is not null then
        raise exception 'there is no job type %', unknown
            using errcode = 'undefined_object',
                  hint = 'Job types are: ' || (select string_agg(t.name, ', ' order by t.name) from pcfarm.job_type t) || '.';
    elsif cardinality(types) > 100 then
        raise exception 'a load with % different job types and priorities', cardinality(types)
            using errcode = 'program_limit_exceeded',
                  hint = 'Each of them is a lane of its own; a load makes at most 100. Let priorities be classes, such as '
                         '0 to 9, and say what is due earlier by a deadline.';
    end if;
    select array_agg(nextval('pcfarm.lane_number')) into soon from unnest(types);
    if cardinality(types) = 1 and not any_later then
        packed[1] := pcfarm.pack_groups(job, soon[1], convoy, case when is_ordered then $q$materialized (
                select row_number() over (order by s.deadline asc nulls last, s.number) as number,
                    s.member_of, s.key, s.payload, s.weight
                from pg_temp.pcfarm_staged s)$q$
            else 'not materialized (table pg_temp.pcfarm_staged)' end);
        packed[1].job_type := types[1];
        packed[1].priority := priorities[1];
        return packed;
    end if;
    select array_agg(nextval('pcfarm.lane_number')) into later from unnest(types);
    execute format($q$
        with staged as %s (
            select s.*, coalesce(s.job_type, $3) as own_type, %s as place from pg_temp.pcfarm_staged s),
        groups as (
            select s.member_of, s.own_type, min(s.place) as first, count(*) as members, max(s.priority) as priority,
                max(s.not_before) filter (where s.not_before > $4) as due_at
            from staged s
            group by s.member_of, s.own_type),
        laned as (
            select g.*, case when g.due_at is null then k.soon else k.later end as lane_id
            from groups g
            join unnest($5::text[], $6::integer[], $7::bigint[], $8::bigint[]) as k(job_type, priority, soon, later)
                on k.job_type = g.own_type and k.priority = g.priority),
        counted as (
            select l.*, pcfarm.pack(l.members, $2) over (partition by l.lane_id order by l.first) >> 20 as batch_order from laned l),
        placed as (
            select c.member_of, c.own_type, c.priority, c.lane_id, c.first, c.members, c.due_at,
                case when c.members <= 100000 then c.batch_order
                    else pcfarm.convoy_is_too_large($1, c.batch_order, c.members) end as batch_order
            from counted c),
        numbered as (
            select p.lane_id, p.lane_id * 10000000000 + row_number() over (partition by p.lane_id order by p.first, s.place)
                as problem_id, p.batch_order, s.key, s.payload, s.weight, p.due_at, p.first, s.place
            from staged s
            join placed p on p.member_of = s.member_of and p.own_type = s.own_type),
        stored as (
            insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload, weight)
            select $1, n.lane_id, n.problem_id, n.batch_order, n.key, n.payload, n.weight
            from numbered n
            -- As they were numbered, which is sorting them once, with their payloads.
            order by n.lane_id, n.first, n.place)
        %s
        select array_agg((l.lane_id, l.own_type, l.priority, l.later, l.problems, l.orders)::pcfarm.packed_lane order by l.lane_id)
        from (
            select p.lane_id, p.own_type, p.priority, p.due_at is not null as later, sum(p.members)::bigint as problems,
                max(p.batch_order) + 1 as orders
            from placed p
            group by 1, 2, 3, 4) l$q$,
        -- Sorted once, or read twice.
        case when is_ordered then 'materialized' else 'not materialized' end,
        case when is_ordered then 'row_number() over (order by s.priority desc, s.deadline asc nulls last, s.number)'
            else 's.number' end,
        case when any_later then $q$, waiting as (
            insert into pcfarm.delayed (job_id, problem_id, due_at, home_lane, home_order, grouped)
            select $1, n.problem_id, n.due_at, n.lane_id, n.batch_order, $9
            from numbered n where n.due_at is not null)$q$ else '' end)
    into packed
    using job, convoy::bigint, own_type, moment, types, priorities, soon, later, grouped;
    return packed;
end $$;

-- What the planner knows about problems is old after a large load, and autovacuum comes late. Its lock is kept until the
-- load commits: so it is taken only if nobody has it, and loaders do not wait for each other.
create function pcfarm.analyze_after_load(loaded bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if loaded >= 10000
        and loaded >= (select c.reltuples / 10 from pg_class c where c.oid = 'pcfarm.problem'::regclass)
    then
        analyze (skip_locked) pcfarm.problem;
    end if;
end $$;

-- The last thing a load does: from here on its problems can be seen, all of them, once it commits.
create function pcfarm.register_lanes(job bigint, lanes pcfarm.packed_lane[], grouped boolean)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if pcfarm.add_lanes(pcfarm.lock_for_loading(job), lanes, grouped) then
        perform pg_notify('pcfarm', 'work');
    end if;
end $$;

-- The same with a job that the caller has locked, and without telling anybody. Returns whether there is more to hand out now.
create function pcfarm.add_lanes(of_job pcfarm.job, lanes pcfarm.packed_lane[], grouped boolean)
returns boolean language plpgsql as $$
begin
    perform pcfarm.check_load_limits(of_job, lanes);
    if of_job.problem_files then
        perform pcfarm.set_problem_files(of_job.job_id, array(select l.lane_id from unnest(lanes) l));
    end if;
    insert into pcfarm.lane (job_id, lane_id, kind, job_type, priority, grouped, next_insertion, problems, exhausted)
    select of_job.job_id, l.lane_id, case when l.later then 'later' else 'load' end, coalesce(l.job_type, of_job.job_type), l.priority,
        add_lanes.grouped, l.orders, l.problems, l.later
    from unnest(lanes) l where l.problems > 0;
    return found;
end $$;

-- Puts problems that a problem of this job enqueues into lanes of their own. Each is a JSON object: key, payload, and
-- optionally job_type, priority, deadline and not_before (in seconds since 1970), weight, and group, which makes one convoy of
-- those that share it.
create function pcfarm.enqueue(job bigint, problems jsonb)
returns void language plpgsql as $$
declare
    own_type text := (select j.job_type from pcfarm.job j where j.job_id = job);
    moment   timestamptz := clock_timestamp();
    wrong    text;
    packed   pcfarm.packed_lane[];
    is_group boolean;
begin
    select string_agg(distinct quote_literal(g.job_type), ', ') into wrong
    from jsonb_to_recordset(problems) as g(job_type text)
    where g.job_type is not null and not exists (select from pcfarm.job_type t where t.name = g.job_type);
    if wrong is not null then
        raise exception 'there is no job type %', wrong using errcode = 'undefined_object';
    end if;
    foreach is_group in array array[false, true] loop
        with given as (
            -- A payload that is JSON's null comes as SQL's.
            select g.key, coalesce(g.payload, 'null') as payload, g.weight, g.deadline, g."group", g.n,
                coalesce(g.job_type, own_type) as own_type,
                coalesce(g.priority, 0) as priority,
                case when to_timestamp(g.not_before) > moment then to_timestamp(g.not_before) end as due_at
            from rows from (jsonb_to_recordset(problems) as (key text, payload jsonb, job_type text, priority integer,
                deadline float8, not_before float8, weight integer, "group" text)) with ordinality
                as g(key, payload, job_type, priority, deadline, not_before, weight, "group", n)
            where (g."group" is not null) = is_group),
        ordered as (
            select g.*, row_number() over (partition by g.own_type, g.priority, g.due_at is not null
                order by g.deadline nulls last, g.n) as place
            from given g),
        -- The first of each job type, priority and kind takes the number of their lane.
        laned as (
            select o.*, case when o.place = 1 then nextval('pcfarm.lane_number') end as new_lane from ordered o),
        placed as (
            select l.*, max(l.new_lane) over (partition by l.own_type, l.priority, l.due_at is not null) as lane_id from laned l),
        convoy as (
            select p.*, min(p.place) over (partition by p.lane_id, p."group", case when p."group" is null then p.n end) as first
            from placed p),
        numbered as materialized (
            select c.*, dense_rank() over (partition by c.lane_id order by c.first) - 1 as batch_order,
                c.lane_id * 10000000000 + row_number() over (partition by c.lane_id order by c.first, c.place) as problem_id
            from convoy c),
        stored as (
            insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload, weight)
            select job, n.lane_id, n.problem_id, n.batch_order, n.key, n.payload, n.weight
            from numbered n
            order by n.lane_id, n.problem_id),
        waiting as (
            insert into pcfarm.delayed (job_id, problem_id, due_at, home_lane, home_order, grouped)
            select job, n.problem_id, max(n.due_at) over (partition by n.lane_id, n.batch_order), n.lane_id, n.batch_order, is_group
            from numbered n where n.due_at is not null)
        select array_agg((l.lane_id, l.own_type, l.priority, l.later, l.problems, l.orders)::pcfarm.packed_lane order by l.lane_id)
        into packed
        from (
            select n.lane_id, n.own_type, n.priority, n.due_at is not null as later, count(*) as problems,
                max(n.batch_order) + 1 as orders
            from numbered n group by 1, 2, 3, 4) l;
        if packed is not null then
            perform pcfarm.register_lanes(job, packed, is_group);
        end if;
    end loop;
end $$;

-- What is said about a job while it runs --------------------------------------------------------------------

-- A JSON merge patch (RFC 7396): objects are merged, null removes, anything else replaces.
create function pcfarm.merge_patch(target jsonb, patch jsonb)
returns jsonb language plpgsql immutable as $$
declare
    merged jsonb := case when jsonb_typeof(target) = 'object' then target else '{}' end;
    part   record;
begin
    if jsonb_typeof(patch) <> 'object' then
        return patch;
    end if;
    for part in select p.key, p.value from jsonb_each(patch) p loop
        merged := case when part.value = 'null' then merged - part.key
            else merged || jsonb_build_object(part.key, pcfarm.merge_patch(merged -> part.key, part.value)) end;
    end loop;
    return merged;
end $$;

-- A job's info with a patch. Refused as the table would, for callers who write it later.
create function pcfarm.patched_info(job bigint, info jsonb, patch jsonb)
returns jsonb language plpgsql as $$
declare
    patched jsonb;
begin
    if patch is null or jsonb_typeof(patch) <> 'object' then
        raise exception 'the info of job %: a JSON object is wanted', job using errcode = 'invalid_parameter_value',
            hint = 'It is merged with what is there: {"rows": 7, "gone": null}.';
    end if;
    patched := pcfarm.merge_patch(info, patch);
    if pg_column_size(patched) > 65536 then
        raise exception 'the info of job % would have % bytes, and may have 65536', job, pg_column_size(patched)
            using errcode = 'check_violation', constraint = 'info_at_most_64_kib',
                hint = 'What is larger belongs into a file, or a table of your own.';
    end if;
    return patched;
end $$;

create function pcfarm.set_info(job bigint, patch jsonb)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    patched jsonb;
begin
    perform pcfarm.check_transaction();
    if not exists (select from pcfarm.job j where j.job_id = job) then
        perform pcfarm.no_such_job(job);
    end if;
    insert into pcfarm.job_info as i (job_id, info) values (job, pcfarm.patched_info(job, '{}', patch))
    on conflict (job_id) do update set info = pcfarm.patched_info(job, i.info, patch), changed_at = clock_timestamp()
    returning i.info into patched;
    return patched;
end $$;
comment on function pcfarm.set_info is
    'Merges a JSON object into a job''s info (RFC 7396: null removes a key), which controllers read with their next checkout and '
    'may change with their results. Returns all of it.';

-- Batch orders of one's own ---------------------------------------------------------------------------------

-- A COPY into a job that is being opened waits or is refused, never lost: open_job takes the job's row FOR
-- UPDATE. The job last checked in this transaction is remembered, so a row costs no query.
create function pcfarm.check_own_order()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('pcfarm.job_being_copied', true) is distinct from new.job_id::text then
        if (pcfarm.lock_for_loading(new.job_id)).state <> 'loading' then
            raise exception 'job % is open: batch orders of one''s own are for jobs in state loading', new.job_id
                using errcode = 'object_not_in_prerequisite_state',
                      hint = 'Add problems to a running job with pcfarm.load(job, query, convoy).';
        end if;
        perform set_config('pcfarm.job_being_copied', new.job_id::text, true);
    end if;
    return null;
end $$;

create trigger own_order_while_loading after insert or update on pcfarm.problem
    for each row when (new.lane_id = 0) execute function pcfarm.check_own_order();

-- Runs right after a COPY, when the planner's statistics do not include the new rows. Therefore the new rows are never joined
-- with each other: window functions cost the same under every estimate. The only join finds each row by its ctid.
create function pcfarm.assign_batch_order(job bigint, convoy integer default 100, group_by text default null)
returns bigint language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    assigned bigint;
    member   text := nullif(btrim(group_by), '');
begin
    perform pcfarm.check_transaction();
    perform pcfarm.convoy_must_be_sensible(convoy);
    if (pcfarm.lock_for_loading(job)).state <> 'loading' then
        raise exception 'job % is open: its batch orders stand', job
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'pcfarm.rerun_job(job, convoy, group_by) makes a new job of the same problems.';
    end if;
    -- Physical order, so that the rows of a convoy share blocks. A group takes the place of its first row.
    execute format($q$
        with ordered as materialized (%s)
        update pcfarm.problem p set batch_order = o.batch_order from ordered o where p.ctid = o.place$q$,
        case when member is null then $q$
            select p.ctid as place, (row_number() over (order by p.ctid) - 1) / $2 as batch_order
            from pcfarm.problem p where p.job_id = $1 and p.lane_id = 0$q$
        else format($q$
            select m.place, pcfarm.pack(case when m.place = m.first then m.members end, $2) over (order by m.first, m.place) >> 20
                as batch_order
            from (
                select r.place, min(r.place) over member as first, count(*) over member as members
                from (
                    -- A row without a group is a group of one.
                    select p.ctid as place, coalesce('g' || (%s)::text, 'r' || p.problem_id) collate "C" as member_of
                    from pcfarm.problem p where p.job_id = $1 and p.lane_id = 0) r
                window member as (partition by r.member_of)) m$q$, member) end)
        using job, convoy::bigint;
    get diagnostics assigned = row_count;
    return assigned;
end $$;
comment on function pcfarm.assign_batch_order is
    'Gives the problems that were copied into a loading job their batch orders: convoys of so many problems in '
    'physical order. group_by is an expression over key and payload, such as payload ->> ''origin''; problems with '
    'the same value share a convoy. May be called again.';

-- A job's life ----------------------------------------------------------------------------------------------

-- Locks the job for a change of state. Hand-outs and loads hold this row FOR SHARE, so none is under way.
create function pcfarm.lock_job(job bigint)
returns pcfarm.job language plpgsql as $$
declare
    locked pcfarm.job;
begin
    perform pcfarm.check_transaction();
    select j.* into locked from pcfarm.job j where j.job_id = job for update;
    if not found then
        perform pcfarm.no_such_job(job);
    end if;
    return locked;
end $$;

create function pcfarm.wrong_state(job pcfarm.job, wanted text, advice text)
returns void language plpgsql immutable as $$
begin
    raise exception 'job % is %: it cannot be %', job.job_id, job.state, wanted
        using errcode = 'object_not_in_prerequisite_state', hint = advice;
end $$;

create function pcfarm.open_job(job bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pcfarm.check_transaction();
    if pcfarm.open_without_telling(job) then
        perform pg_notify('pcfarm', 'work');
    end if;
end $$;
comment on function pcfarm.open_job is 'Starts handing out a job that is loading. Open jobs stay open.';

-- Returns whether it was opened by this.
create function pcfarm.open_without_telling(job bigint)
returns boolean language plpgsql as $$
declare
    locked    pcfarm.job;
    own       bigint;
    unordered bigint;
begin
    locked := pcfarm.lock_job(job);
    if locked.state in ('open', 'held') then
        return false;
    elsif locked.state <> 'loading' then
        perform pcfarm.wrong_state(locked, 'opened', 'It has ended; create a new job.');
    end if;
    if exists (select from pcfarm.problem p where p.job_id = job and p.lane_id = 0) then
        select count(*), count(*) filter (where p.batch_order is null) into own, unordered
        from pcfarm.problem p where p.job_id = job and p.lane_id = 0;
        if unordered > 0 then
            raise exception '% of job %''s problems have no batch order', unordered, job
                using errcode = 'object_not_in_prerequisite_state',
                      hint = format('select pcfarm.assign_batch_order(%s, 100) gives them one.', job);
        end if;
        if own > 100000 then
            perform pcfarm.convoys_must_be_bounded(job);
        end if;
        perform pcfarm.check_load_limits(locked, array[(0, null, 0, false, own, (
            select count(distinct p.batch_order) from pcfarm.problem p where p.job_id = job and p.lane_id = 0))::pcfarm.packed_lane]);
        if locked.problem_files then
            perform pcfarm.set_problem_files(job, '{0}');
        end if;
        insert into pcfarm.lane (job_id, lane_id, kind, job_type, grouped, next_insertion, problems)
        select job, 0, 'own', locked.job_type, true, max(p.batch_order) + 1, own
        from pcfarm.problem p where p.job_id = job and p.lane_id = 0;
    end if;
    update pcfarm.job j set state = 'open', opened_at = clock_timestamp() where j.job_id = job;
    -- What this transaction copies from here on is too late, and must be checked again to be told so.
    perform set_config('pcfarm.job_being_copied', '', true);
    return true;
end $$;

create function pcfarm.hold_job(job bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    locked pcfarm.job;
begin
    perform pcfarm.check_transaction();
    locked := pcfarm.lock_job(job);
    if locked.state = 'held' then
        return;
    elsif locked.state <> 'open' then
        perform pcfarm.wrong_state(locked, 'held', 'Only open jobs can be held.');
    end if;
    update pcfarm.job j set state = 'held' where j.job_id = job;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.hold_job is 'Hands out no more of a job; what is in progress goes on.';

create function pcfarm.release_job(job bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    locked pcfarm.job;
begin
    perform pcfarm.check_transaction();
    locked := pcfarm.lock_job(job);
    if locked.state = 'open' then
        return;
    elsif locked.state <> 'held' then
        perform pcfarm.wrong_state(locked, 'released', 'Only held jobs can be released.');
    end if;
    update pcfarm.job j set state = 'open' where j.job_id = job;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.release_job is 'Hands out a held job again.';

create function pcfarm.cancel_job(job bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    locked pcfarm.job;
    moment timestamptz;
begin
    perform pcfarm.check_transaction();
    locked := pcfarm.lock_job(job);
    if locked.state = 'cancelled' then
        return;
    elsif locked.state in ('done', 'failed') then
        perform pcfarm.wrong_state(locked, 'cancelled', 'It has ended.');
    end if;
    -- No hand-out is under way, so these are all there will be. In ascending order, like everybody.
    perform from pcfarm.checkout c where c.job_id = job and c.ended_at is null order by c.checkout_id for update;
    -- One moment for all, after whatever was accepted: a result later than its job's end is a bug.
    moment := clock_timestamp();
    update pcfarm.checkout c set ended_at = moment, ending = 'revoked', reason = 'the job was cancelled'
    where c.job_id = job and c.ended_at is null;
    update pcfarm.job j set state = 'cancelled', ended_at = moment where j.job_id = job;
    -- They waited for those to close.
    delete from pcfarm.failed_attempt f where f.job_id = job;
    delete from pcfarm.delayed d where d.job_id = job;
    perform pg_notify('pcfarm', 'revoked');
end $$;
comment on function pcfarm.cancel_job is
    'Ends a job at once: what is in progress is told to stop, and nothing more is accepted.';

-- Where what comes back of a job type and priority waits.
create type pcfarm.retry_lane as (job_id bigint, job_type text, priority integer);

-- Locks these lanes, in ascending id, and makes those that are not there: the lock orders what is appended.
create function pcfarm.lock_retry_lanes(wanted pcfarm.retry_lane[])
returns void language plpgsql set enable_seqscan = off set jit = off as $$
begin
    insert into pcfarm.lane (job_id, lane_id, kind, job_type, priority, parked)
    select w.job_id, nextval('pcfarm.lane_number'), 'retry', w.job_type, w.priority, coalesce((
        -- Of a job that is parked as a whole, what comes back is.
        select bool_and(o.parked) from pcfarm.lane o where o.job_id = w.job_id), false)
    from (select distinct w.* from unnest(wanted) w order by w.job_id, w.job_type, w.priority) w
    where (
        select l.lane_id from pcfarm.lane l
        where l.job_id = w.job_id and l.job_type = w.job_type and l.priority = w.priority and l.kind = 'retry') is null
    on conflict (job_id, job_type, priority) where kind = 'retry' do nothing;
    perform from (
        select w.job_id, l.lane_id
        from (select distinct w.* from unnest(wanted) w) w
        cross join lateral (
            select l.lane_id from pcfarm.lane l
            where l.job_id = w.job_id and l.job_type = w.job_type and l.priority = w.priority and l.kind = 'retry' offset 0) l
        order by w.job_id, l.lane_id) o
    cross join lateral (
        select from pcfarm.lane l where l.job_id = o.job_id and l.lane_id = o.lane_id for update) l;
end $$;

-- The next batch order to assign there.
create function pcfarm.end_of_retry_lane(job bigint, lane bigint)
returns bigint language sql stable as $$
    -- What was handed out last may be forgotten.
    select greatest(0,
        (select r.batch_order + 1 from pcfarm.requeued r
        where r.job_id = job and r.lane_id = lane order by r.batch_order desc limit 1),
        (select c.to_order from pcfarm.checkout c
        where c.job_id = job and c.lane_id = lane order by c.from_order desc limit 1))
$$;

create function pcfarm.retry_job(job bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_nestloop = off set jit = off as $$
declare
    locked  pcfarm.job;
    retried bigint;
begin
    perform pcfarm.check_transaction();
    locked := pcfarm.lock_job(job);
    if locked.state not in ('open', 'held', 'failed') then
        perform pcfarm.wrong_state(locked, 'retried', 'Only jobs with failed problems can be retried.');
    end if;
    perform pcfarm.lock_retry_lanes(array(
        select (l.job_id, l.job_type, l.priority)::pcfarm.retry_lane
        from (select distinct r.home_lane from pcfarm.result r where r.job_id = job and r.failed) h
        cross join lateral (
            select l.* from pcfarm.lane l where l.job_id = retry_job.job and l.lane_id = h.home_lane offset 0) l));
    with again as (
        -- Those under a live checkout would be handed out twice: they can be retried once it has ended.
        delete from pcfarm.result r where r.job_id = job and r.failed and not exists (
            select from pcfarm.checkout c where c.job_id = job and c.ended_at is null and c.checkout_id = r.checkout_id)
        returning r.problem_id, r.home_lane, r.home_order, r.message),
    -- Home lanes, each with its retry lane.
    home as materialized (
        select h.home_lane, l.job_type, l.grouped, q.lane_id
        from (select distinct a.home_lane from again a) h
        cross join lateral (
            select l.* from pcfarm.lane l where l.job_id = retry_job.job and l.lane_id = h.home_lane offset 0) l
        cross join lateral (
            select q.lane_id from pcfarm.lane q
            where q.job_id = retry_job.job and q.job_type = l.job_type and q.priority = l.priority and q.kind = 'retry' offset 0) q),
    noted as (
        insert into pcfarm.progress (job_id, job_type, failed)
        select job, h.job_type, -count(*) from again a join home h on h.home_lane = a.home_lane
        group by h.job_type),
    lane_end as materialized (
        select l.lane_id, pcfarm.end_of_retry_lane(job, l.lane_id) as base from (select distinct h.lane_id from home h) l),
    back as (
        insert into pcfarm.requeued
            (job_id, lane_id, batch_order, problem_id, home_lane, home_order, attempts, losses, alone, grouped, message)
        -- Dependent problems of one convoy together, others each alone.
        select job, h.lane_id, e.base + dense_rank() over (
                partition by h.lane_id order by a.home_lane, case when h.grouped then a.home_order end,
                case when not h.grouped then a.problem_id end) - 1,
            a.problem_id, a.home_lane, a.home_order, 0, 0, false, h.grouped, a.message
        from again a
        join home h on h.home_lane = a.home_lane
        join lane_end e on e.lane_id = h.lane_id
        returning 1)
    select count(*) into retried from back;
    if retried > 0 then
        update pcfarm.job j set state = case when j.state = 'held' then 'held' else 'open' end, ended_at = null
        where j.job_id = job;
        perform pg_notify('pcfarm', 'work');
    end if;
    return retried;
end $$;
comment on function pcfarm.retry_job is
    'Puts a job''s failed problems back on its queue with fresh attempts, and opens it again if it had ended. '
    'Returns how many.';

create function pcfarm.rerun_job(job bigint, convoy integer default 100, group_by text default null)
returns bigint language plpgsql set enable_seqscan = off set jit = off as $$
declare
    again bigint;
    -- More than one job type or priority.
    mixed boolean := exists (
        select from pcfarm.job j join pcfarm.lane l on l.job_id = j.job_id and l.kind <> 'retry'
        where j.job_id = job and (l.job_type <> j.job_type or l.priority <> 0));
begin
    perform pcfarm.check_transaction();
    select pcfarm.create_job(j.name, j.job_type, jsonb_strip_nulls(jsonb_build_object('title', j.title,
        'priority', j.priority, 'standing', j.standing, 'parameters', j.parameters,
        'problem_files', j.problem_files,
        'files', (select jsonb_object_agg(f.name, encode(f.sha256, 'hex')) from pcfarm.job_file f where f.job_id = job),
        'require', case when j.requirement is not null then to_jsonb(pcfarm.conditions(j.requirement)) end)))
    into again from pcfarm.job j where j.job_id = job;
    if again is null then
        perform pcfarm.no_such_job(job);
    end if;
    perform pcfarm.load(again, format(
        'select p.key, p.payload, p.weight%s%s from pcfarm.problem p%s where p.job_id = %s '
        'order by p.lane_id, p.batch_order, p.problem_id',
        coalesce(', (' || nullif(btrim(group_by), '') || ')::text as group_key', ''),
        case when mixed then ', l.job_type, l.priority' else '' end,
        case when mixed then ' cross join lateral (select l.job_type, l.priority from pcfarm.lane l '
            'where l.job_id = p.job_id and l.lane_id = p.lane_id offset 0) l' else '' end, job), convoy);
    perform pcfarm.open_job(again);
    return again;
end $$;
comment on function pcfarm.rerun_job is
    'Runs a job''s problems once more, as a new job with convoys of another size or grouping. Returns its id.';

create function pcfarm.submit(name text, job_type text, query text, convoy integer default 100, options jsonb default '{}')
returns bigint language plpgsql as $$
declare
    job bigint;
begin
    perform pcfarm.check_transaction();
    -- A key stands for all that was asked for, the query too.
    if options ? 'idempotency_key' then
        options := jsonb_build_object('idempotency_digest', md5(convoy || ' ' || query)) || options;
    end if;
    job := pcfarm.create_job(submit.name, submit.job_type, submit.options);
    -- Submits with one key take turns until commit: the key may be that of a job that was created empty.
    perform pg_advisory_xact_lock(hashtextextended('pcfarm.submit', job));
    if exists (select from pcfarm.job j where j.job_id = job and j.state = 'loading')
        and not exists (select from pcfarm.lane l where l.job_id = job and l.kind = 'load') then
        perform pcfarm.load(job, query, convoy);
        perform pcfarm.open_job(job);
    end if;
    return job;
end $$;
comment on function pcfarm.submit is
    'Creates, loads and opens a job in one call. Repeated with the same idempotency_key it returns the first job '
    'and loads nothing.';

-- A submission that fits in one message, in one call: what a server otherwise does step by step for an upload, with the
-- same functions. A job is given by its id, or created. Whoever would have to wait is told so soon (lock_not_available):
-- the caller's connection is wanted by others. Returns what its server needs to hand it out without looking: the lane, the
-- payloads as they are stored, in order, and what the job's rows say; ready if it may be handed out now. That server knows by
-- this that there is work: only others are told, if any are heard.
--
-- With a workstation, which waits for problems of of_type and has so many seconds for them, all is one convoy, and is handed
-- out with its load as that checkout, if it may be without a look; null: it was not.
create type pcfarm.job_facts as (
    owner name, name text, job_type text, priority integer, deadline timestamptz, parameters jsonb, ready boolean,
    trace_parent text);

create function pcfarm.submit_problems(
    job bigint, name text, job_type text, options jsonb, keys text[], payloads jsonb[], convoy integer, open boolean,
    for_user text, rights text, server bigint, of_type text, workstation bigint, token bigint, seconds float8,
    out into_job bigint, out repeated boolean, out into_lane bigint, out stored jsonb[], out facts pcfarm.job_facts, out checkout bigint)
-- Plans for a few problems of a small submission cost more than to carry them out.
language plpgsql set lock_timeout = '100ms' set plan_cache_mode = 'force_generic_plan' as $$
declare
    -- Nobody else can have created it.
    is_new boolean := false;
    of_job pcfarm.job;
    is_opened boolean := false;
    others boolean;
begin
    into_job := job;
    repeated := false;
    if for_user is not null then
        -- For this transaction: the connection is kept for the next submission, which may be another user's.
        perform set_config('pcfarm.user', for_user, true), set_config('pcfarm.rights', submit_problems.rights, true);
    end if;
    if job is null then
        is_new := not coalesce(options, '{}') ?| array['idempotency_key', 'unique_key'];
        into_job := pcfarm.make_job(submit_problems.name, submit_problems.job_type, submit_problems.options, open and is_new);
        if not is_new then
            -- Its turn, and then a look in a fresh snapshot, as in pcfarm.submit.
            perform pg_advisory_xact_lock(hashtextextended('pcfarm.submit', into_job));
            select j.state <> 'loading' or exists (
                select from pcfarm.lane l where l.job_id = j.job_id and l.kind = 'load')
            into repeated
            from pcfarm.job j where j.job_id = into_job;
            if repeated then
                return;
            end if;
        end if;
    elsif open then
        -- Before it is shared: of two that share it neither could open it.
        perform from pcfarm.job j where j.job_id = job and pcfarm.sees(j.owner) for update;
    end if;
    if is_new then
        select j.* into of_job from pcfarm.job j where j.job_id = into_job;
    else
        of_job := pcfarm.lock_for_loading(into_job);
    end if;
    into_lane := nextval('pcfarm.lane_number');
    with inserted as (
        insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload)
        select into_job, into_lane, into_lane * 10000000000 + n.number, (n.number - 1) / convoy, n.key, n.payload
        from unnest(keys, payloads) with ordinality as n(key, payload, number)
        returning problem_id, payload)
    select array_agg(i.payload order by i.problem_id) into stored from inserted i;
    perform pcfarm.add_lanes(of_job,
        array[(into_lane, null, 0, false, cardinality(keys), (cardinality(keys) - 1) / convoy + 1)::pcfarm.packed_lane], false);
    if open and not is_new then
        is_opened := pcfarm.open_without_telling(into_job);
        select j.* into of_job from pcfarm.job j where j.job_id = into_job;
    end if;
    facts := (of_job.owner, of_job.name, of_job.job_type, of_job.priority, of_job.deadline, of_job.parameters, false,
        of_job.trace_parent);
    -- What it needs is read by a look at all lanes.
    select of_job.state = 'open' and coalesce(of_job.not_before, '-infinity') <= clock_timestamp()
            and of_job.requirement is null and not of_job.problem_files
            and not exists (
                select from pcfarm.job_type t where t.name = of_job.job_type
                    and (t.suspended_since is not null or t.requirement is not null or t.labels <> '{}')),
        exists (
            select from pcfarm.server s where s.server_id <> server and s.stopped_at is null
                -- One that was killed never says that it stops.
                and s.heard_at > clock_timestamp() - interval '1 minute')
    into facts.ready, others;
    if facts.ready and (not is_new or options <> '{}') then
        facts.ready := not exists (select from pcfarm.job_after a where a.job_id = into_job)
            and not exists (select from pcfarm.job_info i where i.job_id = into_job)
            and not exists (select from pcfarm.job_file f where f.job_id = into_job);
    end if;
    if facts.ready and of_type = of_job.job_type
        -- What comes with it has to be told of.
        and not (is_opened and exists (select from pcfarm.lane l where l.job_id = into_job and l.lane_id <> into_lane))
    then
        checkout := pcfarm.check_out_loaded(of_job, into_lane, cardinality(keys), workstation, token, seconds);
    end if;
    if others and checkout is null then
        perform pg_notify('pcfarm', 'work of ' || server);
    end if;
end $$;
