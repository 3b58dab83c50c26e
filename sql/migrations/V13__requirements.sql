-- What problems need of a workstation: conditions on what its agent reports of it, all of which must hold.
--
-- A condition is written as a text, such as memory >= 8 GiB, and kept as an object: {"fact": "memory", "is": ">=", "value":
-- 8589934592}. A requirement is an array of such objects, each once, in order; null: none. The servers decide by it, in
-- memory, for whom they hand out; here it is checked when it is set, and matched with all workstations that the farm knows, to
-- say of which jobs nothing could ever run.

-- What is written ------------------------------------------------------------------------------------------------------------

create function pcfarm.no_condition(given text, why text)
returns void language plpgsql immutable as $$
begin
    raise exception 'require: condition %: %', coalesce(quote_literal(left(given, 200)), 'null'), why
        using errcode = 'invalid_parameter_value', constraint = 'require',
              hint = 'Conditions are of cores, memory and gpus with =, !=, <, <=, > or >= (cores >= 4, memory >= 8 GiB), of system, '
                     'arch, gpu, program and label with = or != (arch = x86_64, label = lab-a), gpu alone, and '
                     'program = minizinc >= 2.8.';
end $$;

-- Bytes; null: that is no size.
create function pcfarm.bytes_of(size text)
returns numeric language sql immutable as $$
    select trunc(p[1]::numeric * case p[2] when 'B' then 1 when 'kB' then 1e3 when 'MB' then 1e6 when 'GB' then 1e9 when 'TB' then 1e12
        when 'KiB' then 1024 when 'MiB' then 1048576 when 'GiB' then 1073741824 when 'TiB' then 1099511627776 end)
    from regexp_match(size, E'^([0-9]{1,15}(?:\\.[0-9]{1,6})?) ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$') p
$$;

create function pcfarm.condition(given text)
returns jsonb language plpgsql immutable as $$
declare
    parts constant text[] := regexp_match(btrim(given), E'^([A-Za-z_]+)\\s*(?:(<=|>=|!=|<>|==|=|<|>)\\s*(.*))?$');
    fact  constant text := lower(parts[1]);
    op    constant text := case parts[2] when '<>' then '!=' when '==' then '=' else parts[2] end;
    said  text := parts[3];
    size  numeric;
    newer text[];
begin
    if parts is null then
        perform pcfarm.no_condition(given, 'it is not like memory >= 8 GiB');
    elsif fact not in ('cores', 'memory', 'gpus', 'system', 'arch', 'gpu', 'program', 'label') then
        perform pcfarm.no_condition(given, format('agents do not report %s', fact));
    elsif fact = 'gpu' and op is null then
        return jsonb_build_object('fact', 'gpus', 'is', '>=', 'value', 1);
    elsif op is null then
        perform pcfarm.no_condition(given, format('say what %s is to be', fact));
    elsif coalesce(said, '') = '' then
        perform pcfarm.no_condition(given, format('nothing stands behind %s', op));
    elsif fact = 'memory' then
        size := pcfarm.bytes_of(said);
        if size is null or size > 1e18 then
            perform pcfarm.no_condition(given, format('%s is no size: write a number and KiB, MiB, GiB or TiB', said));
        end if;
        return jsonb_build_object('fact', fact, 'is', op, 'value', size);
    elsif fact in ('cores', 'gpus') then
        if said !~ '^[0-9]{1,9}$' then
            perform pcfarm.no_condition(given, format('%s is no whole number', said));
        end if;
        return jsonb_build_object('fact', fact, 'is', op, 'value', said::numeric);
    elsif op not in ('=', '!=') then
        perform pcfarm.no_condition(given, format('%s is a name, which is or is not: use = or !=', fact));
    end if;
    newer := case when fact = 'program' then regexp_match(said, E'^(\\S+)\\s*>=\\s*(.*)$') end;
    said := coalesce(newer[1], said);
    if said !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/+@=-]{0,62}$' then
        perform pcfarm.no_condition(given, format('%s is no name: it has at most 63 letters, digits and _ . : / + @ = -', said));
    elsif fact in ('system', 'arch', 'gpu') then
        -- As other systems call them.
        said := coalesce('{"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "darwin": "macos"}'::jsonb ->> lower(said), lower(said));
    elsif newer is not null then
        if op <> '=' then
            perform pcfarm.no_condition(given, 'a version is at least of a program that is there: use =');
        elsif newer[2] !~ E'^[0-9]{1,9}(\\.[0-9]{1,9}){0,5}$' then
            perform pcfarm.no_condition(given, format('%s is no version: it is like 2.8.5', coalesce(nullif(newer[2], ''), 'nothing')));
        end if;
        return jsonb_build_object('fact', fact, 'is', op, 'value', said, 'at_least', newer[2]);
    end if;
    return jsonb_build_object('fact', fact, 'is', op, 'value', said);
end $$;
comment on function pcfarm.condition is 'A condition on workstations, such as memory >= 8 GiB, as it is kept.';

-- From a list of conditions; null: there are none.
create function pcfarm.requirement(conditions jsonb)
returns jsonb language plpgsql immutable as $$
begin
    if jsonb_typeof(coalesce(conditions, 'null')) not in ('array', 'null') then
        raise exception 'require: a list of conditions is wanted, and not %', left(conditions::text, 200)
            using errcode = 'invalid_parameter_value', constraint = 'require', hint = 'It is like ["memory >= 8 GiB", "gpu"].';
    elsif jsonb_array_length(case jsonb_typeof(conditions) when 'array' then conditions else '[]' end) > 20 then
        raise exception 'require: there are more than 20 conditions' using errcode = 'invalid_parameter_value', constraint = 'require';
    end if;
    return (
        select jsonb_agg(distinct case jsonb_typeof(c) when 'string' then pcfarm.condition(c #>> '{}')
            else to_jsonb(pcfarm.no_condition(c::text, 'it is no text')::text) end)
        from jsonb_array_elements(case jsonb_typeof(conditions) when 'array' then conditions else '[]' end) c);
end $$;

-- In few digits if it is a round one.
create function pcfarm.bytes_text(size numeric)
returns text language sql immutable as $$
    select coalesce((
        select format('%s %s', (size / u.bytes)::bigint, u.unit)
        from (values (1, 1099511627776, 'TiB'), (2, 1073741824, 'GiB'), (3, 1048576, 'MiB'), (4, 1000000000, 'GB'), (5, 1000000, 'MB'),
            (6, 1024, 'KiB')) as u(n, bytes, unit)
        where size > 0 and size % u.bytes = 0 order by u.n limit 1), size || ' B')
$$;

create function pcfarm.condition_text(condition jsonb)
returns text language sql immutable as $$
    select case
        when condition = '{"fact": "gpus", "is": ">=", "value": 1}' then 'gpu'
        else concat_ws(' ', condition ->> 'fact', condition ->> 'is', case condition ->> 'fact'
            when 'memory' then pcfarm.bytes_text((condition ->> 'value')::numeric) else condition ->> 'value' end,
            '>= ' || (condition ->> 'at_least')) end
$$;

create function pcfarm.conditions(requirement jsonb)
returns text[] language sql immutable as $$
    select coalesce(array_agg(pcfarm.condition_text(c) order by pcfarm.condition_text(c)), '{}')
    from jsonb_array_elements(requirement) c
$$;
comment on function pcfarm.conditions is 'A requirement as it is written.';

-- What problems of a job type need in a job. Labels are conditions, too. An empty array: nothing.
create function pcfarm.merged(of_type jsonb, labels text[], of_job jsonb)
returns jsonb language sql immutable as $$
    select coalesce(jsonb_agg(distinct c), '[]')
    from (
        select jsonb_array_elements(of_type) as c
        union all
        select jsonb_array_elements(of_job)
        union all
        select jsonb_build_object('fact', 'label', 'is', '=', 'value', l) from unnest(labels) l) o
$$;

-- What workstations have --------------------------------------------------------------------------------------------------

create view pcfarm.workstation_facts as
select w.workstation_id, w.hostname, w.state, w.controllers, w.cores, w.memory_bytes, w.system_name, w.arch, w.gpus, w.programs,
    case when z.selection ? 'labels' then array(
        select unnest(w.labels) union select jsonb_array_elements_text(z.selection -> 'labels')) else w.labels end as labels
from pcfarm.workstation w
left join pcfarm.selection z on z.hostname = w.hostname;
comment on view pcfarm.workstation_facts is
    'What requirements look at: what agents report of their workstations, with the labels that administrators have given. '
    'A GPU is its vendor and its name, a program its name and its version.';

-- To be compared; null: that is none.
create function pcfarm.version_parts(version text)
returns bigint[] language sql immutable as $$
    select case when version ~ E'^[0-9]{1,9}(\\.[0-9]{1,9}){0,5}$'
        then string_to_array(regexp_replace(version, E'(\\.0+)+$', ''), '.')::bigint[] end
$$;

create function pcfarm.holds(condition jsonb, its pcfarm.workstation_facts)
-- Not in SQL, which would be set up anew for each workstation.
returns boolean language plpgsql immutable as $$
declare
    fact   constant text := condition ->> 'fact';
    op     constant text := condition ->> 'is';
    value  constant text := condition ->> 'value';
    wanted numeric;
    has    numeric;
begin
    if fact in ('cores', 'memory', 'gpus') then
        wanted := value::numeric;
        has := case fact when 'cores' then its.cores when 'memory' then its.memory_bytes else cardinality(its.gpus) end;
        return case op when '=' then has = wanted when '!=' then has <> wanted when '<' then has < wanted
            when '<=' then has <= wanted when '>' then has > wanted when '>=' then has >= wanted else false end;
    end if;
    return (op = '=') = case fact
        when 'system' then its.system_name = value
        when 'arch' then its.arch = value
        when 'label' then value = any (its.labels)
        when 'gpu' then exists (select from unnest(its.gpus) g where split_part(g, ' ', 1) = value)
        when 'program' then exists (
            select from unnest(its.programs) p
            where split_part(p, ' ', 1) = value and (not condition ? 'at_least' or coalesce(
                pcfarm.version_parts(split_part(p, ' ', 2)) >= pcfarm.version_parts(condition ->> 'at_least'), false)))
        else op <> '=' end;
end $$;

create function pcfarm.meets(requirement jsonb, its pcfarm.workstation_facts)
returns boolean language plpgsql immutable as $$
begin
    for n in 0 .. jsonb_array_length(requirement) - 1 loop
        if not pcfarm.holds(requirement -> n, its) then
            return false;
        end if;
    end loop;
    return true;
end $$;

-- Asked again when something is handed out: what a server has in sight may be some moments old. All of a lane's hand-outs, or
-- none: each starts where the one before it ends.
create function pcfarm.all_meet(job bigint, job_type text, workstations bigint[])
returns boolean language plpgsql stable as $$
declare
    of_type jsonb;
    of_job  jsonb;
    wanted  text[];
begin
    select t.requirement, t.labels, j.requirement into of_type, wanted, of_job
    from pcfarm.job j
    join pcfarm.job_type t on t.name = all_meet.job_type
    where j.job_id = all_meet.job and (t.requirement is not null or t.labels <> '{}' or j.requirement is not null);
    -- As pcfarm.merged has it, which takes longer than to look.
    return not found or not exists (
        select from pcfarm.workstation_facts f
        where f.workstation_id = any (workstations)
            and not (wanted <@ f.labels and (of_type is null or pcfarm.meets(of_type, f))
                and (of_job is null or pcfarm.meets(of_job, f))));
end $$;

-- Jobs that nothing could ever run ------------------------------------------------------------------------------------------

-- Is there a workstation, connected or not?
create function pcfarm.somewhere(controller text, requirement jsonb)
returns boolean language sql stable as $$
    select exists (
        select from pcfarm.workstation_facts f
        where somewhere.controller = any (f.controllers)
            and (requirement = '[]' or pcfarm.meets(requirement, f)))
$$;

-- Of these jobs (null: of all that have not ended) those of whose problems some wait for a workstation that the farm does not
-- have: it knows none, connected or not, that runs their controller and has what they need.
create function pcfarm.without_workstation(jobs bigint[] default null)
returns table (job_id bigint, job_type text, controller text, requirement jsonb) language sql stable as $$
    with need as materialized (
        select distinct j.job_id, t.name as job_type, pcfarm.announced(t.controller) as controller,
            case when t.requirement is null and t.labels = '{}' and j.requirement is null then '[]'
                else pcfarm.merged(t.requirement, t.labels, j.requirement) end as requirement
        from pcfarm.job j
        cross join lateral (
            select l.job_type from pcfarm.lane l where l.job_id = j.job_id and not l.exhausted
            union all
            select j.job_type where not exists (select from pcfarm.lane l where l.job_id = j.job_id)) n
        join pcfarm.job_type t on t.name = n.job_type
        where j.ended_at is null and (jobs is null or j.job_id = any (jobs))),
    -- Each is looked for once, however many jobs have it.
    nowhere as materialized (
        select k.controller, k.requirement from (select distinct n.controller, n.requirement from need n) k
        where not pcfarm.somewhere(k.controller, k.requirement))
    select n.job_id, n.job_type, n.controller, n.requirement
    from need n
    join nowhere k on k.controller = n.controller and k.requirement = n.requirement
    where exists (
            select from pcfarm.queue_pointer q
            where q.job_id = n.job_id and q.job_type = n.job_type and q.next_extraction < q.next_insertion)
        or exists (
            select from pcfarm.delayed d
            join pcfarm.lane l on l.job_id = d.job_id and l.lane_id = d.home_lane and l.job_type = n.job_type
            where d.job_id = n.job_id)
        or not exists (select from pcfarm.lane l where l.job_id = n.job_id)
$$;

-- What those have instead that do not fulfil a condition.
create function pcfarm.instead(condition jsonb, its pcfarm.workstation_facts[])
returns text language plpgsql stable as $$
declare
    fact constant text := condition ->> 'fact';
    op   constant text := condition ->> 'is';
    has  text[];
    many integer;
begin
    if fact in ('cores', 'memory', 'gpus') then
        return (
            select case
                    when fact = 'memory' then case when op in ('<', '<=') then 'the least is ' else 'the most is ' end
                        || trim_scale(trunc(n.extreme / 1073741824, 2)) || ' GiB'
                    when fact = 'gpus' and n.extreme = 0 then 'none has any'
                    else case when op in ('<', '<=') then 'the least is ' else 'the most is ' end || n.extreme end
            from (
                select case when op in ('<', '<=') then min(v.number) else max(v.number) end as extreme
                from unnest(its) f
                cross join lateral (select (case fact when 'cores' then f.cores when 'memory' then f.memory_bytes
                    else cardinality(f.gpus) end)::numeric) v(number)) n);
    elsif op = '!=' then
        return 'all have it';
    end if;
    select array_agg(o.name order by o.name) into has from (
        select distinct v.name from unnest(its) f
        cross join lateral unnest(case fact when 'system' then array[f.system_name] when 'arch' then array[f.arch]
            when 'label' then f.labels when 'gpu' then array(select split_part(g, ' ', 1) from unnest(f.gpus) g)
            else f.programs end) v(name)
        where v.name <> '') o;
    many := cardinality(has);
    return case when many > 0 then 'there is ' || array_to_string(has[:8], ', ')
        || case when many > 8 then format(' and %s more', many - 8) else '' end else 'none has any' end;
end $$;

-- Why no workstation could run it: a sentence for each condition that none fulfils. None: some could.
create function pcfarm.why_nowhere(controller text, requirement jsonb)
returns setof text language plpgsql stable as $$
declare
    able    pcfarm.workstation_facts[];
    others  boolean;
    among   text := '';
    c       jsonb;
    said    boolean := false;
    closest record;
begin
    if pcfarm.somewhere(controller, requirement) then
        return;
    end if;
    select coalesce(array_agg(f) filter (where why_nowhere.controller = any (f.controllers)), '{}'),
        bool_or(why_nowhere.controller <> all (f.controllers))
    into able, others
    from pcfarm.workstation_facts f;
    if others is null then
        return next format('the farm knows no workstation yet: start an agent that runs controller %s', controller);
        return;
    elsif cardinality(able) = 0 then
        return next format('no workstation runs controller %s', controller);
        said := true;
        able := array(select f from pcfarm.workstation_facts f);
    elsif others then
        among := format(' that runs %s', controller);
    end if;
    for c in select e from jsonb_array_elements(requirement) e order by pcfarm.condition_text(e) loop
        if not exists (select from unnest(able) f where pcfarm.holds(c, f)) then
            return next format('no workstation%s has %s: %s', among, pcfarm.condition_text(c), pcfarm.instead(c, able));
            said := true;
        end if;
    end loop;
    if not said then
        select f.hostname, l.lacks into closest
        from unnest(able) f
        cross join lateral (
            select array_agg(pcfarm.condition_text(e) order by pcfarm.condition_text(e)) as lacks
            from jsonb_array_elements(requirement) e where not pcfarm.holds(e, f)) l
        order by cardinality(l.lacks), f.hostname limit 1;
        return next format('no workstation%s has all of %s: %s comes closest, without %s', among,
            array_to_string(pcfarm.conditions(requirement), ', '), closest.hostname, array_to_string(closest.lacks, ', '));
    end if;
end $$;

-- What has been told of already.
create table pcfarm.nowhere (
    job_id   bigint not null,
    job_type text not null,
    since    timestamptz not null default clock_timestamp(),
    primary key (job_id, job_type)
);

create view pcfarm.job_without_workstation as
select w.job_id, j.name, j.owner, j.state, w.job_type, w.controller, pcfarm.conditions(w.requirement) as require,
    array(select pcfarm.why_nowhere(w.controller, w.requirement)) as reasons, n.since
from pcfarm.without_workstation() w
join pcfarm.job j on j.job_id = w.job_id
left join pcfarm.nowhere n on n.job_id = w.job_id and n.job_type = w.job_type;
comment on view pcfarm.job_without_workstation is
    'Jobs of which problems wait that no workstation of this farm, connected or not, could ever run, and why. They leave this '
    'view when one appears that could.';

-- Writes an event when a job comes to be one of these, and another when it is not any more. Of several servers one is at it.
-- Returns how many events there are.
create function pcfarm.note_nowhere()
returns bigint language plpgsql set enable_nestloop = off set jit = off as $$
declare
    noted bigint;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pcfarm.note_nowhere', 0)) then
        return 0;
    end if;
    with present as materialized (select w.* from pcfarm.without_workstation() w),
    came as (
        insert into pcfarm.nowhere (job_id, job_type) select p.job_id, p.job_type from present p
        on conflict do nothing
        returning job_id, job_type),
    went as (
        delete from pcfarm.nowhere n
        where not exists (select from present p where p.job_id = n.job_id and p.job_type = n.job_type)
        returning n.job_id, n.job_type)
    insert into pcfarm.event (what, job_id, subject, details)
    select 'job without workstation', j.job_id, j.name, jsonb_build_object('job_type', p.job_type,
        'reasons', to_jsonb(array(select pcfarm.why_nowhere(p.controller, p.requirement))))
    from came c
    join present p on p.job_id = c.job_id and p.job_type = c.job_type
    cross join lateral (select j.job_id, j.name from pcfarm.job j where j.job_id = c.job_id offset 0) j
    union all
    select 'job with workstation', j.job_id, j.name, jsonb_build_object('job_type', w.job_type)
    from went w
    cross join lateral (
        select j.job_id, j.name from pcfarm.job j where j.job_id = w.job_id and j.ended_at is null offset 0) j
    order by 2, 1;
    get diagnostics noted = row_count;
    return noted;
end $$;

-- What nobody calls by hand is nobody's to call; loaders may see what cannot run, and why.
do $$
declare
    f record;
begin
    for f in
        select p.oid::regprocedure as signature, p.proname
        from pg_proc p where p.pronamespace = 'pcfarm'::regnamespace
            and p.proname in ('no_condition', 'bytes_of', 'condition', 'requirement', 'bytes_text', 'condition_text', 'conditions',
                'merged', 'version_parts', 'holds', 'meets', 'all_meet', 'somewhere', 'without_workstation', 'instead', 'why_nowhere',
                'note_nowhere')
    loop
        execute format('revoke all on routine %s from public', f.signature);
        if f.proname not in ('note_nowhere', 'all_meet') and exists (select from pg_roles where rolname = 'pcfarm_loader') then
            execute format('grant execute on routine %s to pcfarm_loader', f.signature);
        end if;
    end loop;
    if exists (select from pg_roles where rolname = 'pcfarm_loader') then
        grant select on pcfarm.workstation_facts, pcfarm.job_without_workstation to pcfarm_loader;
    end if;
end $$;
