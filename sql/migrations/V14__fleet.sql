-- The fleet: what administrators do with many workstations at once. Each is one statement for all of them, and all or nothing:
-- of workstations of which one is not known, none is changed.

-- Who drains, for people: where nobody has logged in, a server's own name would say nothing.
create function pcfarm.drainer()
returns text language plpgsql stable as $$
begin
    return case when coalesce(current_setting('pcfarm.user', true), '') = '' and pcfarm.is_server() then 'an administrator'
        else pcfarm.acting_user()::text end;
end $$;

create function pcfarm.drain_reason(by text, why text, deadline timestamptz)
returns text language sql stable as $$
    select 'drained by ' || coalesce(by, 'an administrator') || case when why <> '' then ': ' || why else '' end
        -- A time that is over when it begins is none that anybody needs to know.
        || case when deadline is not null and by is distinct from 'the farm' then '; what is not finished at '
            || to_char(deadline at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC is given back' else '' end
$$;

create function pcfarm.no_presence(name text, given jsonb, wanted text)
returns void language plpgsql immutable as $$
begin
    raise exception '%: % is wanted, and not %', name, wanted, left(given::text, 200)
        using errcode = 'invalid_parameter_value', constraint = 'presence';
end $$;

-- Settings that are not given stay as they are; null: not wanted any more. What an agent's owner does not allow does not hold there.
create function pcfarm.set_presence(hostnames text[], settings jsonb)
returns void language plpgsql as $$
declare
    one   record;
    times constant text[] := array['start_after', 'resume_after', 'give_back_after'];
    flags constant text[] := array['on_battery', 'on_metered', 'beside_full_screen'];
    days  constant text := '(mon|tue|wed|thu|fri|sat|sun)';
    clock constant text := '([01]?[0-9]|2[0-4]):[0-5][0-9]';
begin
    perform pcfarm.check_options(settings,
        times || flags || array['on_return', 'load', 'free_memory', 'memory_limit_mib', 'hours'], 'presence');
    for one in select s.key, s.value, jsonb_typeof(s.value) as kind, s.value #>> '{}' as said from jsonb_each(settings) s loop
        if one.kind = 'null' then
            continue;
        elsif one.key = any (times) then
            if one.kind <> 'number' or one.value::numeric not between 0 and 604800 then
                perform pcfarm.no_presence(one.key, one.value, 'a time in seconds, at most a week,');
            end if;
        elsif one.key = any (flags) then
            if one.kind <> 'boolean' then
                perform pcfarm.no_presence(one.key, one.value, 'true or false');
            end if;
        elsif one.key = 'on_return' then
            if one.kind <> 'string' or one.said not in ('give-back', 'finish', 'freeze') then
                perform pcfarm.no_presence(one.key, one.value, 'give-back, finish or freeze');
            end if;
        elsif one.key = 'load' then
            if one.kind <> 'number' or one.value::numeric <= 0 or one.value::numeric > 65536 then
                perform pcfarm.no_presence(one.key, one.value, 'how many cores others may use, more than 0,');
            end if;
        elsif one.key = 'free_memory' then
            if one.kind <> 'number' or one.value::numeric not between 0 and 0.9 then
                perform pcfarm.no_presence(one.key, one.value, 'a part of the memory, from 0 to 0.9,');
            end if;
        elsif one.key = 'memory_limit_mib' then
            if one.kind <> 'number' or one.value::numeric not between 1 and 1e12 or one.value::numeric % 1 <> 0 then
                perform pcfarm.no_presence(one.key, one.value, 'a whole number of MiB');
            end if;
        elsif one.kind <> 'array' or jsonb_array_length(one.value) > 50 or exists (
            select from jsonb_array_elements(one.value) h
            where jsonb_typeof(h) <> 'string' or h #>> '{}' !~* format('^(%1$s([-,]%1$s)*|%2$s-%2$s|%1$s([-,]%1$s)* %2$s-%2$s)$', days, clock))
        then
            perform pcfarm.no_presence(one.key, one.value, 'a list of hours such as "mon-fri 18:00-07:00"');
        end if;
    end loop;
    insert into pcfarm.presence as p (hostname, wanted)
    select h, jsonb_strip_nulls(settings) from unnest(hostnames) h group by h order by h
    on conflict (hostname) do update set wanted = jsonb_strip_nulls(p.wanted || settings), changed_at = clock_timestamp();
    delete from pcfarm.presence p where p.hostname = any (hostnames) and p.wanted = '{}';
    perform pg_notify('pcfarm', 'selection');
end $$;
comment on function pcfarm.set_presence is
    'What agents of these host names are to go by: start_after, resume_after, give_back_after (seconds), on_return, load, free_memory, '
    'memory_limit_mib, on_battery, on_metered, beside_full_screen, hours. What is not named stays; null removes it. An agent is made '
    'more careful by it, and less so only where its owner allows that.';

-- Removes workstations that are gone for good. Those that are connected, or were a moment ago, are refused unless `force`:
-- then what they hold comes back at no cost. Their certificates let nobody in any more. Checkouts and events keep their
-- ids, and pcfarm.forgotten_workstation what they were called. Returns those that were forgotten.
create function pcfarm.forget_workstations(ids bigint[], force boolean)
returns table (workstation_id bigint, hostname text) language plpgsql as $$
declare
    missing bigint[];
    living  text;
begin
    perform from pcfarm.workstation w where w.workstation_id = any (ids) order by w.workstation_id for update;
    select array_agg(i order by i) into missing from unnest(ids) i
    where not exists (select from pcfarm.workstation w where w.workstation_id = i);
    if missing is not null then
        raise exception 'there is no workstation %', array_to_string(missing[:10], ', ') using errcode = 'no_data_found';
    end if;
    select string_agg(l.hostname, ', ' order by l.workstation_id) filter (where l.n <= 5)
        || case when count(*) > 5 then format(' and %s more', count(*) - 5) else '' end
    into living
    from (select w.workstation_id, w.hostname, row_number() over (order by w.workstation_id) as n
        from pcfarm.workstation w where w.workstation_id = any (ids) and w.state <> 'dead') l;
    if living is not null and not force then
        raise exception '% is not dead: who is forgotten is gone for good', living
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Stop its agent and wait for the lease, or force it.';
    end if;
    insert into pcfarm.forgotten_workstation (workstation_id, identity, hostname, note, registered_at)
    select w.workstation_id, w.identity, w.hostname, w.note, w.registered_at from pcfarm.workstation w
    where w.workstation_id = any (ids);
    perform from pcfarm.close_checkouts(array(
        select c.checkout_id from unnest(ids) i(id)
        cross join lateral (
            select c.checkout_id from pcfarm.checkout c
            where c.workstation_id = i.id and c.ended_at is null offset 0) c), 'unreceived', 'its workstation was forgotten');
    delete from pcfarm.workstation_credential c
    using pcfarm.workstation w where w.workstation_id = any (ids) and c.identity = w.identity;
    delete from pcfarm.workstation_speed s where s.workstation_id = any (ids);
    perform pg_notify('pcfarm', 'drain');
    return query delete from pcfarm.workstation w where w.workstation_id = any (ids)
        returning w.workstation_id, w.hostname;
end $$;

-- Quarantines workstations that fail what others solve: such as have failed so many problems within an hour, each since
-- solved by another, and for each of their cores at least three times as many as all others together for each of theirs; what
-- fails here and there fails everywhere about alike. Starts from what failed, the newest first, and looks each up by key. What
-- they hold is given back. Of several servers one is at it. Returns how many there are.
create function pcfarm.quarantine_workstations()
returns bigint language plpgsql set enable_seqscan = off as $$
declare
    enough      constant integer := (select f.quarantine_after from pcfarm.farm f);
    quarantined bigint;
begin
    if enough is null or not pg_try_advisory_xact_lock(hashtextextended('pcfarm.quarantine_workstations', 0)) then
        return 0;
    end if;
    with failed as materialized (
        select q.failed_on, q.job_id, q.problem_id, q.message, q.requeued_at from pcfarm.requeued q
        where q.failed_on is not null and q.requeued_at > clock_timestamp() - interval '1 hour'
        order by q.requeued_at desc
        limit 5000),
    solved as materialized (
        select distinct on (f.failed_on, f.job_id, f.problem_id)
            f.failed_on, f.job_id, f.problem_id, f.message, f.requeued_at, c.workstation_id as solved_on, c.job_type
        from failed f
        cross join lateral (
            select r.checkout_id from pcfarm.result r
            where r.job_id = f.job_id and r.problem_id = f.problem_id and not r.failed offset 0) r
        cross join lateral (
            select c.workstation_id, c.job_type from pcfarm.checkout c where c.checkout_id = r.checkout_id offset 0) c
        where c.workstation_id <> f.failed_on
        order by f.failed_on, f.job_id, f.problem_id, f.requeued_at desc),
    counted as (
        select w.workstation_id, w.drain, greatest(w.cores, 1) as cores, count(s.problem_id) as problems,
            jsonb_agg(jsonb_build_object('job_id', s.job_id, 'problem_id', s.problem_id, 'message', left(s.message, 200),
                'solved_on', s.solved_on) order by s.requeued_at desc) as evidence,
            mode() within group (order by s.job_type) as job_type
        from pcfarm.workstation w
        left join solved s on s.failed_on = w.workstation_id and s.requeued_at > coalesce(w.trusted_since, '-infinity')
        where w.state <> 'dead'
        group by w.workstation_id, w.drain, w.cores),
    compared as (
        select k.*, sum(k.problems) over () - k.problems as others_problems, sum(k.cores) over () - k.cores as others_cores
        from counted k),
    guilty as materialized (
        select w.workstation_id, k.problems, k.evidence, k.job_type
        from compared k
        join pcfarm.workstation w on w.workstation_id = k.workstation_id
        where k.problems >= enough and not k.drain
            and k.problems::float8 / k.cores >= 3 * coalesce(k.others_problems::float8 / nullif(k.others_cores, 0), 0)
        order by w.workstation_id
        for update of w)
    update pcfarm.workstation w set drain = true, drained_by = 'the farm', drained_since = clock_timestamp(),
        drained_why = g.why, drain_deadline = clock_timestamp(), state = 'draining',
        reason = pcfarm.drain_reason('the farm', g.why, null), since = clock_timestamp(),
        quarantine = jsonb_build_object('job_type', g.job_type, 'problems', g.problems,
            'evidence', jsonb_path_query_array(g.evidence, '$[0 to 9]'))
    from (
        select g.*, format('quarantined: it failed %s problems that others solved', g.problems) as why from guilty g) g
    where w.workstation_id = g.workstation_id and w.state <> 'dead';
    get diagnostics quarantined = row_count;
    if quarantined > 0 then
        perform pg_notify('pcfarm', 'drain');
    end if;
    return quarantined;
end $$;

revoke all on routine pcfarm.quarantine_workstations() from public;
revoke all on routine pcfarm.drainer(), pcfarm.drain_reason(text, text, timestamptz),
    pcfarm.forget_workstations(bigint[], boolean), pcfarm.no_presence(text, jsonb, text),
    pcfarm.set_presence(text[], jsonb) from public;
do $$
begin
    if exists (select from pg_roles where rolname = 'pcfarm_loader') then
        grant select on pcfarm.forgotten_workstation to pcfarm_loader;
    end if;
end $$;
