-- Who may have how much: users and their shares, resources, what is suspended and what is parked.
--
-- A limit is a row that is locked, and never changed, by whoever hands out under it. What counts against it is read from
-- live checkouts by the statement after the lock: nothing can leak, and limits hold across all servers.

-- What holds for everybody.
create table pcfarm.farm (
    singleton        boolean primary key default true constraint one_row check (singleton),
    suspended_since  timestamptz,
    suspended_reason text not null default '',
    -- For users who have none of their own; null: no limit.
    queue_limit      bigint constraint queue_limit_not_negative check (queue_limit >= 0),
    concurrency      bigint constraint concurrency_not_negative check (concurrency >= 0),
    allocation       integer not null default 1 constraint allocation_range check (allocation between 0 and 1000000),
    -- A workstation that fails what others solve is quarantined when there are so many such problems of a job type within an
    -- hour; null: never.
    quarantine_after integer default 20 constraint quarantine_after_positive check (quarantine_after > 0),
    -- A problem that has failed on so many workstations is failed, whatever attempts it has left; null: it has all of them.
    blame_after      integer default 3 constraint blame_after_range check (blame_after > 1),
    -- A workstation that has accepted no work on so many days on which it could have is reported; null: none is.
    idle_after_days  integer default 7 constraint idle_after_days_range check (idle_after_days between 1 and 365)
);
insert into pcfarm.farm default values;

create table pcfarm.farm_user (
    name        name primary key,
    -- Most problems that wait, most problems in progress, turns in a round; null: as the farm has it.
    queue_limit bigint constraint queue_limit_not_negative check (queue_limit >= 0),
    concurrency bigint constraint concurrency_not_negative check (concurrency >= 0),
    allocation  integer constraint allocation_range check (allocation between 0 and 1000000),
    -- Served only by workstations that require it by name.
    prohibited  boolean not null default false,
    created_at  timestamptz not null default clock_timestamp()
);

-- Beside what holds for the user.
create table pcfarm.user_job_type (
    user_name   name not null references pcfarm.farm_user on delete cascade,
    job_type    text not null references pcfarm.job_type on delete cascade,
    queue_limit bigint constraint queue_limit_not_negative check (queue_limit >= 0),
    concurrency bigint constraint concurrency_not_negative check (concurrency >= 0),
    -- A place of its own in the ring.
    allocation  integer constraint allocation_range check (allocation between 0 and 1000000),
    primary key (user_name, job_type)
);

create table pcfarm.resource (
    name        text primary key constraint resource_name check (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
    tokens      bigint not null constraint tokens_not_negative check (tokens >= 0),
    description text not null default ''
);

-- What each problem in progress of a job type has of a resource.
create table pcfarm.job_type_resource (
    job_type text not null references pcfarm.job_type on delete cascade,
    resource text not null references pcfarm.resource,
    tokens   bigint not null constraint tokens_positive check (tokens > 0),
    primary key (job_type, resource)
);
create index job_type_resource_by_resource on pcfarm.job_type_resource (resource);

-- What workstations of a name may take, beside what their agents can run. As set_selection has checked it.
create table pcfarm.selection (
    hostname   text primary key,
    selection  jsonb not null,
    changed_at timestamptz not null default clock_timestamp()
);

-- What administrators want agents of a host name to go by, within what their owners allow. As set_presence has checked it.
create table pcfarm.presence (
    hostname   text primary key,
    wanted     jsonb not null,
    changed_at timestamptz not null default clock_timestamp()
);

-- Users -------------------------------------------------------------------------------------------------------------

-- Options that are not given stay as they are; null: as the farm has it.
create function pcfarm.set_user(names name[], options jsonb)
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    perform pcfarm.check_options(options, array['queue_limit', 'concurrency', 'allocation', 'prohibited'], 'user');
    insert into pcfarm.farm_user (name) select distinct n from unnest(names) n order by n on conflict do nothing;
    perform from pcfarm.farm_user u where u.name = any (names) order by u.name for no key update;
    update pcfarm.farm_user u set
        queue_limit = case when options ? 'queue_limit' then (options ->> 'queue_limit')::bigint else u.queue_limit end,
        concurrency = case when options ? 'concurrency' then (options ->> 'concurrency')::bigint else u.concurrency end,
        allocation = case when options ? 'allocation' then (options ->> 'allocation')::integer else u.allocation end,
        prohibited = case when options ? 'prohibited' then coalesce((options ->> 'prohibited')::boolean, false) else u.prohibited end
    where u.name = any (names);
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.set_user is
    'Limits and share of users: queue_limit (most problems waiting), concurrency (most problems in progress; 0 stops them), '
    'allocation (turns in a round; 0 takes them out of the ring), prohibited. What is not named stays; null is the farm''s.';

create function pcfarm.set_user_job_type(names name[], job_type text, options jsonb)
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    perform pcfarm.job_type_must_exist(set_user_job_type.job_type);
    perform pcfarm.check_options(options, array['queue_limit', 'concurrency', 'allocation'], 'user and job type');
    insert into pcfarm.farm_user (name) select distinct n from unnest(names) n on conflict do nothing;
    insert into pcfarm.user_job_type (user_name, job_type)
    select distinct n, set_user_job_type.job_type from unnest(names) n on conflict do nothing;
    update pcfarm.user_job_type u set
        queue_limit = case when options ? 'queue_limit' then (options ->> 'queue_limit')::bigint else u.queue_limit end,
        concurrency = case when options ? 'concurrency' then (options ->> 'concurrency')::bigint else u.concurrency end,
        allocation = case when options ? 'allocation' then (options ->> 'allocation')::integer else u.allocation end
    where u.user_name = any (names) and u.job_type = set_user_job_type.job_type;
    delete from pcfarm.user_job_type u
    where u.user_name = any (names) and u.job_type = set_user_job_type.job_type
        and u.queue_limit is null and u.concurrency is null and u.allocation is null;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.set_user_job_type is
    'The same of what users have of one job type: these limits hold beside those of the user, and an allocation is a place '
    'of its own in the ring. Null removes one.';

create function pcfarm.set_farm(options jsonb)
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    perform pcfarm.check_options(options, array['queue_limit', 'concurrency', 'allocation', 'quarantine_after', 'blame_after',
        'idle_after_days'], 'farm');
    update pcfarm.farm f set
        queue_limit = case when options ? 'queue_limit' then (options ->> 'queue_limit')::bigint else f.queue_limit end,
        concurrency = case when options ? 'concurrency' then (options ->> 'concurrency')::bigint else f.concurrency end,
        quarantine_after = case when options ? 'quarantine_after' then (options ->> 'quarantine_after')::integer
            else f.quarantine_after end,
        blame_after = case when options ? 'blame_after' then (options ->> 'blame_after')::integer else f.blame_after end,
        idle_after_days = case when options ? 'idle_after_days' then (options ->> 'idle_after_days')::integer
            else f.idle_after_days end,
        allocation = coalesce((options ->> 'allocation')::integer, f.allocation);
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.set_farm is
    'What users have who have nothing of their own: queue_limit, concurrency, allocation. And when what fails is a workstation''s '
    'fault, or a problem''s: quarantine_after problems that others solve, blame_after workstations. And when a workstation that does not work is reported: '
    'after idle_after_days on which it could have worked.';

create function pcfarm.set_resource(name text, tokens bigint, description text default '')
returns void language plpgsql as $$
declare
    needed_by text;
begin
    perform pcfarm.check_transaction();
    if tokens is null then
        select string_agg(n.job_type, ', ' order by n.job_type) into needed_by
        from pcfarm.job_type_resource n where n.resource = set_resource.name;
        if needed_by is not null then
            raise exception 'resource % is needed by job types: %', set_resource.name, needed_by
                using errcode = 'object_not_in_prerequisite_state', hint = 'They must need none of it first: `pcfarm types set TYPE --resource NAME=0`.';
        end if;
        delete from pcfarm.resource r where r.name = set_resource.name;
        if not found then
            raise exception 'there is no resource %', coalesce(quote_literal(set_resource.name), 'null')
                using errcode = 'no_data_found', hint = 'See pcfarm.resource_status.';
        end if;
    else
        insert into pcfarm.resource as r (name, tokens, description)
        values (set_resource.name, set_resource.tokens, coalesce(set_resource.description, ''))
        on conflict on constraint resource_pkey do update set tokens = excluded.tokens, description = excluded.description;
    end if;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.set_resource is
    'How many tokens there are of a resource, such as a licence. Each problem in progress has as many as its job type needs '
    '(resources in the options of pcfarm.create_job_type). Null removes it.';

create function pcfarm.selection_text(selection jsonb)
returns text language sql immutable as $$
    select string_agg(w.word || ' ' || coalesce((
            select string_agg(e, ', ') from jsonb_array_elements_text(
                case jsonb_typeof(s.value) when 'array' then s.value else '[]' end) e),
            s.value #>> '{}'), '; ' order by w.n)
    from (values (1, 'required', 'nobody''s but'), (2, 'excluded', 'not of'), (3, 'preferred', 'first of'),
        (4, 'job_types', 'job types'), (5, 'labels', 'labelled'), (6, 'largest_problem', 'bytes of a problem at most'))
        as w(n, key, word)
    join jsonb_each(selection) s on s.key = w.key
$$;

-- Options that are not given stay as they are; null or an empty list: none any more.
create function pcfarm.set_selection(hostnames text[], options jsonb)
returns void language plpgsql as $$
declare
    lists constant text[] := array['required', 'excluded', 'preferred', 'job_types', 'labels'];
begin
    perform pcfarm.check_transaction();
    perform pcfarm.check_options(options, lists || 'largest_problem'::text, 'selection');
    perform pcfarm.texts_of(o.value, o.key) from jsonb_each(options) o where o.key = any (lists);
    perform pcfarm.job_type_must_exist(t) from unnest(pcfarm.texts_of(options -> 'job_types', 'job_types')) t;
    if jsonb_typeof(options -> 'largest_problem') not in ('number', 'null')
        or (options ->> 'largest_problem')::numeric not between 1 and 1000000000
        or (options ->> 'largest_problem')::numeric % 1 <> 0
    then
        raise exception 'largest_problem: a number of bytes is wanted, and not %', options -> 'largest_problem'
            using errcode = 'invalid_parameter_value';
    end if;
    insert into pcfarm.selection as s (hostname, selection)
    select distinct h, options from unnest(hostnames) h
    on conflict (hostname) do update set selection = s.selection || options, changed_at = clock_timestamp();
    update pcfarm.selection s set selection = coalesce((
        select jsonb_object_agg(o.key, o.value) from jsonb_each(s.selection) o where o.value not in ('null', '[]')), '{}')
    where s.hostname = any (hostnames);
    delete from pcfarm.selection s where s.hostname = any (hostnames) and s.selection = '{}';
    perform pg_notify('pcfarm', 'selection');
end $$;
comment on function pcfarm.set_selection is
    'What workstations of these names may take: required (users; nobody else''s work), excluded, preferred (users), job_types, '
    'labels (beside those that their agents say), largest_problem (bytes of payload). What is not named stays; null removes it.';

-- Slots: an agent is a workstation of its host's name, and one more of the name HOST#SLOT for each of these. They share its
-- cores, and each may take what its own selection says.
create table pcfarm.slot (
    hostname   text not null,
    name       text not null constraint slot_name check (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
    started_at timestamptz not null default clock_timestamp(),
    primary key (hostname, name)
);

create function pcfarm.start_slot(hostnames text[], name text)
returns void language plpgsql as $$
declare
    crowded text;
begin
    perform pcfarm.check_transaction();
    if start_slot.name is null or start_slot.name !~ '^[A-Za-z0-9_.-]{1,63}$' then
        raise exception 'a slot cannot be called %', coalesce(quote_literal(start_slot.name), 'null')
            using errcode = 'invalid_parameter_value',
                  hint = 'Its name has at most 63 letters, digits, dots, hyphens and underscores.';
    elsif exists (select from pcfarm.slot s where s.hostname || '#' || s.name = any (hostnames)) then
        raise exception 'a slot has no slots of its own' using errcode = 'invalid_parameter_value',
            hint = 'Start it beside the other one, on the agent''s own name.';
    end if;
    insert into pcfarm.slot (hostname, name) select distinct h, start_slot.name from unnest(hostnames) h on conflict do nothing;
    select s.hostname into crowded from pcfarm.slot s where s.hostname = any (hostnames) group by s.hostname having count(*) > 16 limit 1;
    if found then
        raise exception 'workstation % would have more than 16 slots', crowded
            using errcode = 'program_limit_exceeded', hint = 'Stop some with pcfarm.stop_slot(hostnames, name).';
    end if;
    perform pg_notify('pcfarm', 'selection');
end $$;
comment on function pcfarm.start_slot is
    'Lets the agents of these names run a slot of this name beside what they are: a workstation HOST#SLOT that shares their '
    'cores, with a selection of its own. Agents that connect later find it, too.';

create function pcfarm.stop_slot(hostnames text[], name text)
returns bigint language plpgsql as $$
declare
    stopped bigint;
begin
    perform pcfarm.check_transaction();
    delete from pcfarm.slot s where s.hostname = any (hostnames) and s.name = stop_slot.name;
    get diagnostics stopped = row_count;
    if stopped = 0 then
        raise exception 'there is no slot % on %', quote_literal(stop_slot.name), array_to_string(hostnames, ', ')
            using errcode = 'no_data_found', hint = 'pcfarm slots list shows those there are.';
    end if;
    perform pg_notify('pcfarm', 'selection');
    return stopped;
end $$;
comment on function pcfarm.stop_slot is
    'Ends it: what it holds goes back to the queue at no cost. Its selection stays, for when it is started again.';

-- Suspension and parking --------------------------------------------------------------------------------------------

create function pcfarm.suspend_queue(reason text default '')
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    update pcfarm.farm f set suspended_since = coalesce(f.suspended_since, clock_timestamp()),
        suspended_reason = coalesce(suspend_queue.reason, '');
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.suspend_queue is 'Hands out nothing any more. Loads and submits go on, and what is in progress does.';

create function pcfarm.resume_queue()
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    update pcfarm.farm f set suspended_since = null, suspended_reason = '';
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.resume_queue is 'Hands out again after pcfarm.suspend_queue.';

create function pcfarm.suspend_job_type(name text, reason text default '')
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    perform pcfarm.job_type_must_exist(suspend_job_type.name);
    update pcfarm.job_type t set suspended_since = coalesce(t.suspended_since, clock_timestamp()),
        suspended_reason = coalesce(suspend_job_type.reason, '')
    where t.name = suspend_job_type.name;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.suspend_job_type is 'Hands out no more problems of this type, of whatever job.';

create function pcfarm.resume_job_type(name text)
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    perform pcfarm.job_type_must_exist(resume_job_type.name);
    update pcfarm.job_type t set suspended_since = null, suspended_reason = '' where t.name = resume_job_type.name;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.resume_job_type is 'Hands out problems of this type again.';

-- Loads that match; what came back from a whole job that is parked is, too.
create function pcfarm.park(job bigint default null, owner name default null, loaded_from timestamptz default null,
    loaded_before timestamptz default null, parked boolean default true)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    problems bigint;
begin
    perform pcfarm.check_transaction();
    if job is null and owner is null and loaded_from is null and loaded_before is null then
        raise exception 'nothing says what is to be parked'
            using errcode = 'invalid_parameter_value',
                  hint = 'Name a job, an owner, or when it was loaded. pcfarm.suspend_queue() stops everything.';
    end if;
    with chosen as materialized (
        select l.job_id, l.lane_id from pcfarm.lane l
        join pcfarm.job j on j.job_id = l.job_id and j.ended_at is null
        where (park.job is null or l.job_id = park.job) and (park.owner is null or j.owner = park.owner)
            and (l.kind <> 'retry' or (park.loaded_from is null and park.loaded_before is null))
            and (park.loaded_from is null or l.loaded_at >= park.loaded_from)
            and (park.loaded_before is null or l.loaded_at < park.loaded_before)
            and l.parked <> park.parked
        order by l.job_id, l.lane_id
        for update of l),
    changed as (
        update pcfarm.lane l set parked = park.parked from chosen c where l.job_id = c.job_id and l.lane_id = c.lane_id
        returning l.problems)
    select coalesce(sum(c.problems), 0)::bigint into problems from changed c;
    perform pg_notify('pcfarm', 'work');
    return problems;
end $$;
comment on function pcfarm.park is
    'Hands out no more of what was loaded into a job, by a user, in a time, or all of these. Returns how many problems those '
    'loads had. With parked => false it is handed out again.';

-- Limits ------------------------------------------------------------------------------------------------------------

-- Limits of a problem's type and of its job's hold both: what is in a checkout counts under each of the two.

-- Problems in progress of a user, or of what it has of a job type; live checkouts only, by index.
create function pcfarm.in_progress_of(owner name, job_type text default null)
returns bigint language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(c.problems - c.delivered), 0)::bigint
    from pcfarm.job_type t
    cross join lateral (
        select c.problems, c.delivered from pcfarm.checkout c
        where c.job_type = t.name and c.owner = in_progress_of.owner and c.ended_at is null
        union all
        select c.problems, c.delivered from pcfarm.checkout c
        where c.of_type = in_progress_of.job_type and c.owner = in_progress_of.owner and c.ended_at is null offset 0) c
    where in_progress_of.job_type is null or t.name = in_progress_of.job_type
$$;

create function pcfarm.tokens_in_use(resource text)
returns bigint language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(c.tokens), 0)::bigint
    from pcfarm.job_type_resource r
    cross join lateral (
        select (c.problems - c.delivered) * r.tokens as tokens from pcfarm.checkout c
        where c.job_type = r.job_type and c.ended_at is null
        union all
        -- Of what both types need, a problem has the more.
        select (c.problems - c.delivered) * greatest(0, r.tokens - coalesce((
            select n.tokens from pcfarm.job_type_resource n where n.job_type = c.job_type and n.resource = r.resource), 0))
        from pcfarm.checkout c
        where c.of_type = r.job_type and c.ended_at is null offset 0) c
    where r.resource = tokens_in_use.resource
$$;

-- Problems waiting: loaded, without a result, and in nobody's hands.
create function pcfarm.waiting_of(owner name, job_type text default null)
returns bigint language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(l.problems), 0)::bigint - coalesce(sum(d.ended), 0)::bigint
        - pcfarm.in_progress_of(waiting_of.owner, waiting_of.job_type)
    from pcfarm.job j
    cross join lateral (
        select sum(l.problems) as problems from pcfarm.lane l
        where l.job_id = j.job_id and (waiting_of.job_type is null or waiting_of.job_type in (l.job_type, j.job_type))) l
    cross join lateral (
        select sum(p.done + p.failed) as ended from pcfarm.progress p
        where p.job_id = j.job_id and (waiting_of.job_type is null or waiting_of.job_type in (p.job_type, j.job_type))) d
    where j.ended_at is null and j.owner = waiting_of.owner
$$;

-- Called with the job's row locked, before its lanes are registered. Whoever loads under a limit takes turns with the same
-- user's other loads. A convoy that could never be handed out is refused where it is known that there is one.
create function pcfarm.check_load_limits(of_job pcfarm.job, lanes pcfarm.packed_lane[])
returns void language plpgsql as $$
declare
    limited record;
    waiting bigint;
begin
    -- As most users have none.
    if not exists (select from pcfarm.farm f where f.concurrency is not null or f.queue_limit is not null)
        and not exists (
            select from pcfarm.farm_user u
            where u.name = of_job.owner and (u.concurrency is not null or u.queue_limit is not null))
        and not exists (select from pcfarm.user_job_type u where u.user_name = of_job.owner)
        and not exists (select from pcfarm.job_type_resource)
    then
        return;
    end if;
    select k.convoy, m.most, m.what into limited
    from (
        select t.name as job_type, ceil(max(l.problems::numeric / l.orders))::bigint as convoy
        from unnest(lanes) l cross join unnest(array[l.job_type, of_job.job_type]) t(name)
        where l.orders > 0 and t.name is not null group by 1) k
    cross join lateral (
        select coalesce(u.concurrency, f.concurrency) as most, format('user %s may have in progress', of_job.owner) as what
        from pcfarm.farm f left join pcfarm.farm_user u on u.name = of_job.owner
        union all
        select u.concurrency, format('user %s may have of job type %s in progress', u.user_name, u.job_type)
        from pcfarm.user_job_type u where u.user_name = of_job.owner and u.job_type = k.job_type
        union all
        select r.tokens / n.tokens, format('there are tokens of resource %s for', r.name)
        from pcfarm.job_type_resource n join pcfarm.resource r on r.name = n.resource where n.job_type = k.job_type) m
    -- None is for a while.
    where k.convoy > m.most and m.most > 0
    order by m.most limit 1;
    if found then
        raise exception 'a convoy of % problems would never be handed out: % is what %', limited.convoy, limited.most, limited.what
            using errcode = 'program_limit_exceeded', hint = 'Load smaller convoys.';
    end if;
    for limited in
        select u.queue_limit as own_limit, null::text as job_type, sum(l.problems) as problems
        from (
            select coalesce(u.queue_limit, f.queue_limit) as queue_limit
            from pcfarm.farm f left join pcfarm.farm_user u on u.name = of_job.owner) u
        cross join unnest(lanes) l
        where u.queue_limit is not null
        group by u.queue_limit
        union all
        select u.queue_limit, u.job_type, sum(l.problems)
        from unnest(lanes) l
        join pcfarm.user_job_type u on u.user_name = of_job.owner and u.job_type in (l.job_type, of_job.job_type)
        where u.queue_limit is not null
        group by u.queue_limit, u.job_type
    loop
        -- Not that user's row: hand-outs would wait for whoever loads, until that commits.
        perform pg_advisory_xact_lock(hashtext('pcfarm.queue_limit'), hashtext(of_job.owner));
        waiting := pcfarm.waiting_of(of_job.owner, limited.job_type);
        if waiting + limited.problems > limited.own_limit then
            raise exception '% problems more would be more than user % may have waiting%: % are, and the limit is %',
                    limited.problems, of_job.owner, coalesce(' of job type ' || limited.job_type, ''), waiting, limited.own_limit
                using errcode = 'configuration_limit_exceeded',
                      hint = 'Try again when some are done, or ask an administrator for a higher queue_limit.';
        end if;
    end loop;
end $$;

create function pcfarm.set_job_type_resources(name text, resources jsonb)
returns void language plpgsql as $$
declare
    unknown text;
begin
    select string_agg(quote_literal(r.key), ', ') into unknown
    from jsonb_object_keys(coalesce(resources, '{}')) as r(key)
    where not exists (select from pcfarm.resource k where k.name = r.key);
    if unknown is not null then
        raise exception 'job type %: there is no resource %', set_job_type_resources.name, unknown
            using errcode = 'undefined_object', constraint = 'job_type_resources',
                  hint = 'Make one with pcfarm.set_resource(name, tokens).';
    end if;
    -- What stays as it is, is not written: events tell what has changed.
    delete from pcfarm.job_type_resource r
    where r.job_type = set_job_type_resources.name and not coalesce(resources, '{}') ? r.resource;
    insert into pcfarm.job_type_resource as r (job_type, resource, tokens)
    select set_job_type_resources.name, e.key, e.value::bigint from jsonb_each_text(coalesce(resources, '{}')) e
    on conflict on constraint job_type_resource_pkey do update set tokens = excluded.tokens where r.tokens <> excluded.tokens;
end $$;

-- What users have in the ring, and how much may still be handed out under limits. No row: no limit. With an owner and no
-- job type: of the user; with both: of what it has of that job type; with a job type alone: of that type, by its resources.
create view pcfarm.share as
with owner as materialized (
    select distinct j.owner from pcfarm.job j where j.ended_at is null and j.state = 'open')
select o.owner, null::text as job_type, coalesce(u.allocation, f.allocation) as allocation, coalesce(u.prohibited, false) as prohibited,
    coalesce(u.concurrency, f.concurrency) as most,
    case when coalesce(u.concurrency, f.concurrency) is not null then
        greatest(0, coalesce(u.concurrency, f.concurrency) - pcfarm.in_progress_of(o.owner)) end as room
from owner o
cross join pcfarm.farm f
left join pcfarm.farm_user u on u.name = o.owner
union all
select t.user_name, t.job_type, t.allocation, coalesce(u.prohibited, false), t.concurrency,
    case when t.concurrency is not null then greatest(0, t.concurrency - pcfarm.in_progress_of(t.user_name, t.job_type)) end
from pcfarm.user_job_type t
join owner o on o.owner = t.user_name
join pcfarm.farm_user u on u.name = t.user_name
union all
select null, n.job_type, null, false, min(r.tokens / n.tokens),
    min(greatest(0, (r.tokens - pcfarm.tokens_in_use(r.name)) / n.tokens))
from pcfarm.job_type_resource n
join pcfarm.resource r on r.name = n.resource
group by n.job_type;
comment on view pcfarm.share is
    'What each user with open jobs has in a round, and how many problems may still be handed out under its concurrency, that '
    'of a job type of its own, or the resources of a job type.';

-- Asked again when something is handed out: what a server has in sight may be a second old.
create function pcfarm.may_be_handed_out(job bigint, lane bigint)
returns boolean language sql stable as $$
    select exists (
        select from pcfarm.lane l
        join pcfarm.job j on j.job_id = l.job_id
        where l.job_id = job and l.lane_id = lane and not l.parked and not exists (
            select from pcfarm.job_type t where t.name in (l.job_type, j.job_type) and t.suspended_since is not null))
    and not exists (select from pcfarm.waits_for(job))
$$;

-- Hands out a lane whole, as one checkout, in the transaction that has loaded it: a job that is open and waits for nothing, of
-- which this transaction has the row. Nobody else can have moved the pointer, or parked it. Null: somebody has to look first,
-- at what is suspended, or has a limit or a place in the ring of its own.
create function pcfarm.check_out_loaded(
    of_job pcfarm.job, lane bigint, problems integer, workstation bigint, token bigint, seconds float8)
returns bigint language plpgsql as $$
declare
    made bigint;
begin
    insert into pcfarm.checkout (job_id, lane_id, job_type, owner, from_order, to_order, problems, workstation_id, token, deadline)
    select of_job.job_id, lane, of_job.job_type, of_job.owner, 0, 1, check_out_loaded.problems, workstation, check_out_loaded.token,
        clock_timestamp() + seconds * interval '1 second'
    from pcfarm.farm f
    join pcfarm.farm_user u on u.name = of_job.owner
    where f.suspended_since is null
        and coalesce(u.concurrency, f.concurrency) is null and coalesce(u.allocation, f.allocation) > 0 and not u.prohibited
        and not exists (select from pcfarm.user_job_type o where o.user_name = of_job.owner and o.job_type = of_job.job_type)
        and not exists (select from pcfarm.job_type_resource n where n.job_type = of_job.job_type)
        and not exists (select from pcfarm.profile p where p.job_type = of_job.job_type)
    returning checkout_id into made;
    return made;
end $$;

-- Hands out what check_out does, under limits: the limits' rows are locked in order, and what is live is read by the
-- statement after that. Of each limit the first hand-outs that fit are made, and no other after one that does not. Whoever
-- waits does so for a second at most; whoever does not makes none of what is under a limit that somebody has locked.
create function pcfarm.check_out_within_limits(
    job_ids bigint[], lane_ids bigint[], job_types text[], from_orders bigint[], to_orders bigint[], problems integer[],
    workstation_ids bigint[], tokens bigint[], seconds float8[], weights bigint[], waits boolean)
returns table (checkout_id bigint, job_id bigint, lane_id bigint, from_order bigint)
language plpgsql set enable_seqscan = off set lock_timeout = '1s' as $$
declare
    locked   bigint[];
    owners   name[];
    fits     boolean[];
    -- Of each hand-out its problems' type, of each job its own.
    types    text[];
    -- Those of them that have a profile, and those that need what somebody has locked.
    profiled text[];
    busy     text[] := '{}';
begin
    if exists (select from pcfarm.farm f where f.suspended_since is not null) then
        return;
    end if;
    -- Other hand-outs may be forgotten in a crash and be made again: then two would have what there is one of.
    perform set_config('synchronous_commit', 'on', true);
    select array_agg(j.job_id), array_agg(distinct j.owner), job_types || array_agg(distinct j.job_type)
    into locked, owners, types
    from (select j.job_id, j.owner, j.job_type from pcfarm.job j
        where j.job_id = any (job_ids) and j.state = 'open' order by j.job_id for share skip locked) j;
    if locked is null then
        return;
    end if;
    if waits then
        perform from pcfarm.farm_user u where u.name = any (owners) order by u.name for no key update;
        perform from pcfarm.resource r
        where r.name in (select n.resource from pcfarm.job_type_resource n where n.job_type = any (types))
        order by r.name for no key update;
        select array_agg(t.name) into profiled
        from (select t.name from pcfarm.job_type t
            where t.name = any (types) and exists (select from pcfarm.profile p where p.job_type = t.name)
            order by t.name for no key update) t;
    else
        select array_agg(u.name) into owners
        from (select u.name from pcfarm.farm_user u where u.name = any (owners) for no key update skip locked) u;
        select array_agg(j.job_id) into locked from pcfarm.job j where j.job_id = any (locked) and j.owner = any (owners);
        with resource as materialized (
            select r.name from pcfarm.resource r
            where r.name in (select n.resource from pcfarm.job_type_resource n where n.job_type = any (types))
            for no key update skip locked),
        profile as materialized (
            select t.name from pcfarm.job_type t
            where t.name = any (types) and exists (select from pcfarm.profile p where p.job_type = t.name)
            for no key update skip locked)
        select (select array_agg(p.name) from profile p), coalesce(array_agg(t.name), '{}') into profiled, busy
        from unnest(types) t(name)
        where exists (
                select from pcfarm.job_type_resource n
                where n.job_type = t.name and n.resource not in (select r.name from resource r))
            or exists (select from pcfarm.profile p where p.job_type = t.name) and t.name not in (select p.name from profile p);
    end if;

    with hand_out as materialized (
        select h.n, h.problems, h.weight, h.job_type, nullif(j.job_type, h.job_type) as of_type, j.owner
        from unnest(job_ids, job_types, check_out_within_limits.problems, weights) with ordinality
            as h(job_id, job_type, problems, weight, n)
        join pcfarm.job j on j.job_id = h.job_id
        where h.job_id = any (locked) and not h.job_type = any (busy) and not j.job_type = any (busy)),
    concurrency as materialized (
        select u.name as owner, null::text as job_type,
            coalesce(u.concurrency, f.concurrency) - pcfarm.in_progress_of(u.name) as room
        from pcfarm.farm f
        join pcfarm.farm_user u on u.name = any (owners)
        where coalesce(u.concurrency, f.concurrency) is not null
        union all
        select t.user_name, t.job_type, t.concurrency - pcfarm.in_progress_of(t.user_name, t.job_type)
        from pcfarm.user_job_type t
        where t.user_name = any (owners) and t.job_type = any (types) and t.concurrency is not null),
    profile as materialized (
        select p.job_type, p.profile_id, p.problems_per_checkout, case when p.problems_per_hour is not null then
            p.problems_per_hour - pcfarm.handed_out_in_an_hour(p.profile_id) end as room
        from (select distinct t from unnest(profiled) t) t cross join lateral pcfarm.profile_at(t.t) p),
    need as (
        select h.n, r.resource, max(r.tokens) as tokens
        from hand_out h
        join pcfarm.job_type_resource r on r.job_type in (h.job_type, h.of_type)
        group by h.n, r.resource),
    wanted as (
        select h.n, c.room, sum(h.problems) over (partition by c.owner, c.job_type order by h.n) as problems
        from hand_out h
        join concurrency c on c.owner = h.owner and (c.job_type is null or c.job_type in (h.job_type, h.of_type))
        union all
        select h.n, r.tokens - pcfarm.tokens_in_use(r.name), sum(h.problems * n.tokens) over (partition by r.name order by h.n)
        from hand_out h
        join need n on n.n = h.n
        join pcfarm.resource r on r.name = n.resource
        union all
        select h.n, p.room, sum(h.weight) over (partition by p.profile_id order by h.n)
        from hand_out h
        join profile p on p.job_type in (h.job_type, h.of_type) and p.room is not null
        union all
        select h.n, p.problems_per_checkout, h.problems
        from hand_out h
        join profile p on p.job_type in (h.job_type, h.of_type) and p.problems_per_checkout is not null)
    select array_agg(g.fits order by g.n) into fits
    from (
        -- What is behind one that does not fit waits with it.
        select h.n, bool_and(exists (select from hand_out o where o.n = h.n)
            and not exists (select from wanted w where w.n = h.n and w.problems > w.room))
            over (partition by h.job_id, h.lane_id order by h.n) as fits
        from unnest(job_ids, lane_ids) with ordinality as h(job_id, lane_id, n)) g;

    return query
    with made as (
    insert into pcfarm.checkout as c
        (job_id, lane_id, job_type, of_type, owner, from_order, to_order, problems, workstation_id, token, deadline)
    select h.job_id, h.lane_id, h.job_type, nullif(j.job_type, h.job_type), j.owner, h.from_order, h.to_order, h.problems, h.workstation_id, h.token,
        clock_timestamp() + h.seconds * interval '1 second'
    from unnest(job_ids, lane_ids, job_types, from_orders, to_orders, check_out_within_limits.problems, workstation_ids, tokens,
        seconds, fits) with ordinality
        as h(job_id, lane_id, job_type, from_order, to_order, problems, workstation_id, token, seconds, fits, n)
    join pcfarm.job j on j.job_id = h.job_id
    join lateral (
        select f.from_order from unnest(job_ids, lane_ids, from_orders) with ordinality as f(job_id, lane_id, from_order, n)
        where f.job_id = h.job_id and f.lane_id = h.lane_id order by f.n limit 1) first on true
    where h.fits and pcfarm.may_be_handed_out(h.job_id, h.lane_id)
        and pcfarm.all_meet(h.job_id, h.job_type, array(
            select o.workstation_id from unnest(job_ids, lane_ids, workstation_ids) as o(job_id, lane_id, workstation_id)
            where o.job_id = h.job_id and o.lane_id = h.lane_id))
        and first.from_order = coalesce((
            select p.to_order from pcfarm.checkout p
            where p.job_id = h.job_id and p.lane_id = h.lane_id order by p.from_order desc limit 1), 0)
    order by h.n
    returning c.checkout_id, c.job_id, c.lane_id, c.from_order, c.job_type, c.of_type),
    counted as (
        -- Nobody else writes of these entries, whose job types are locked. A clock that was set back changes no order.
        insert into pcfarm.handed_out (profile_id, at, weight, total)
        select n.profile_id, greatest(clock_timestamp(), l.at + interval '1 microsecond'), n.weight, coalesce(l.total, 0) + n.weight
        from (
            select p.profile_id, sum(h.weight) as weight
            from made m
            join unnest(job_ids, lane_ids, from_orders, weights) as h(job_id, lane_id, from_order, weight)
                on h.job_id = m.job_id and h.lane_id = m.lane_id and h.from_order = m.from_order
            cross join unnest(array[m.job_type, m.of_type]) t(name)
            cross join lateral pcfarm.profile_at(t.name) p
            where t.name = any (profiled) and p.problems_per_hour is not null
            group by p.profile_id) n
        left join lateral (
            select o.at, o.total from pcfarm.handed_out o where o.profile_id = n.profile_id order by o.at desc limit 1) l on true)
    select m.checkout_id, m.job_id, m.lane_id, m.from_order from made m;
end $$;

-- The entry of each job type's profile that holds now, and what it leaves of this hour.
create view pcfarm.profile_now as
select t.name as job_type, p.profile_id, p.problems_per_hour, p.problems_per_checkout, p.priority,
    case when p.problems_per_hour is not null then
        greatest(0, p.problems_per_hour - pcfarm.handed_out_in_an_hour(p.profile_id)) end as room
from pcfarm.job_type t
cross join lateral pcfarm.profile_at(t.name) p
where exists (select from pcfarm.profile p where p.job_type = t.name);
comment on view pcfarm.profile_now is
    'The entry of each job type''s profile that holds now, and what may still be handed out under it: pcfarm.explain_profile '
    'says why.';
