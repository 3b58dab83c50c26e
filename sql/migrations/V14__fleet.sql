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

-- Hours of the week, as agents have them in their files.
create function pcfarm.are_hours(value jsonb)
returns boolean language plpgsql immutable as $$
declare
    days  constant text := '(mon|tue|wed|thu|fri|sat|sun)';
    clock constant text := '([01]?[0-9]|2[0-3]):[0-5][0-9]|24:00';
begin
    return jsonb_typeof(value) = 'array' and jsonb_array_length(value) <= 50 and not exists (
        select from jsonb_array_elements(value) h
        where jsonb_typeof(h) <> 'string'
            or h #>> '{}' !~* format('^(%1$s([-,]%1$s)*|(%2$s)-(%2$s)|%1$s([-,]%1$s)* (%2$s)-(%2$s))$', days, clock));
end $$;

-- Settings that are not given stay as they are; null: not wanted any more. What an agent's owner does not allow does not hold there.
create function pcfarm.set_presence(hostnames text[], settings jsonb)
returns void language plpgsql as $$
declare
    one   record;
    times constant text[] := array['start_after', 'resume_after', 'give_back_after'];
    flags constant text[] := array['on_battery', 'on_metered', 'beside_full_screen'];
begin
    perform pcfarm.check_transaction();
    perform pcfarm.check_options(settings,
        times || flags || array['on_return', 'load', 'free_memory', 'memory_limit_mib', 'cores', 'hours',
            'wake_hours', 'wake_time_zone', 'wake_address'], 'presence');
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
        elsif one.key = 'cores' then
            if one.kind <> 'number' or one.value::numeric not between 1 and 65536 or one.value::numeric % 1 <> 0 then
                perform pcfarm.no_presence(one.key, one.value, 'a whole number of cores');
            end if;
        elsif one.key = 'wake_address' then
            if one.kind <> 'string' or one.said !~ E'^[A-Za-z0-9._:\\[\\]-]{1,255}$' then
                perform pcfarm.no_presence(one.key, one.value, 'an address that a network hears, such as 192.0.2.255 or 192.0.2.255:9,');
            end if;
        elsif one.key = 'wake_time_zone' then
            if one.kind <> 'string' or not exists (select from pg_timezone_names z where z.name = one.said) then
                perform pcfarm.no_presence(one.key, one.value, 'a time zone such as Europe/Berlin');
            end if;
        elsif not pcfarm.are_hours(one.value) then
            perform pcfarm.no_presence(one.key, one.value, 'a list of hours such as "18:00-07:00" or "sat,sun"');
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
    'memory_limit_mib, cores, on_battery, on_metered, beside_full_screen, hours; and, for servers, wake_hours, wake_time_zone and '
    'wake_address. What is not named stays; null removes it. An agent is made more careful by it, and less so only where its '
    'owner allows that.';

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
        from pcfarm.workstation w where w.workstation_id = any (ids) and w.state not in ('offline', 'dead')) l;
    if living is not null and not force then
        raise exception '% is neither offline nor dead: who is forgotten is gone for good', living
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
    delete from pcfarm.workstation_record r where r.workstation_id = any (ids);
    perform pg_notify('pcfarm', 'drain');
    return query delete from pcfarm.workstation w where w.workstation_id = any (ids)
        returning w.workstation_id, w.hostname;
end $$;

-- Times in the future are of a clock that was ahead. Nothing here counts them as lately, or they would count until they come.

-- What has failed within an hour, the newest first, and of which job type it is; without what is not held against its
-- workstation any more. Reads what failed, and nothing else of what was done.
create function pcfarm.failed_lately()
returns table (failed_on bigint, job_id bigint, problem_id bigint, job_type text, message text, failed_at timestamptz)
language sql stable as $$
    select q.failed_on, q.job_id, q.problem_id, l.job_type, q.message, q.requeued_at
    from (
        select q.failed_on, q.job_id, q.problem_id, q.home_lane, q.message, q.requeued_at from pcfarm.requeued q
        where q.failed_on is not null and q.requeued_at > statement_timestamp() - interval '1 hour'
            and q.requeued_at <= statement_timestamp()
        order by q.requeued_at desc
        limit 5000) q
    cross join lateral (
        select l.job_type from pcfarm.lane l where l.job_id = q.job_id and l.lane_id = q.home_lane offset 0) l
    where not exists (
        select from pcfarm.workstation w where w.workstation_id = q.failed_on and w.trusted_since >= q.requeued_at)
$$;

-- Workstations and job types of which each has failed at least `enough` problems that another has solved since, and has itself
-- solved at most a third as many of those that had failed, here or elsewhere. What fails now and then, or did for a while,
-- moves to and fro between workstations, about as often one way as the other, however fast each of them is.
create function pcfarm.suspects(enough integer)
returns table (workstation_id bigint, job_type text, problems bigint, evidence jsonb) language sql stable as $$
    with solved as materialized (
        select distinct on (f.failed_on, f.job_id, f.problem_id)
            f.failed_on, f.job_id, f.problem_id, f.job_type, f.message, f.failed_at, c.workstation_id as solved_on
        from pcfarm.failed_lately() f
        cross join lateral (
            select r.checkout_id from pcfarm.result r
            where r.job_id = f.job_id and r.problem_id = f.problem_id and not r.failed offset 0) r
        cross join lateral (
            select c.workstation_id from pcfarm.checkout c where c.checkout_id = r.checkout_id offset 0) c
        order by f.failed_on, f.job_id, f.problem_id, f.failed_at desc),
    blamed as (
        select s.failed_on as workstation_id, s.job_type, count(*) as problems,
            jsonb_agg(jsonb_build_object('job_id', s.job_id, 'problem_id', s.problem_id, 'message', left(s.message, 200),
                'solved_on', s.solved_on) order by s.failed_at desc) as evidence
        from solved s where s.solved_on <> s.failed_on
        group by 1, 2),
    cleared as (
        select s.solved_on as workstation_id, s.job_type, count(distinct (s.job_id, s.problem_id)) as problems
        from solved s group by 1, 2)
    select b.workstation_id, b.job_type, b.problems, jsonb_path_query_array(b.evidence, '$[0 to 9]')
    from blamed b
    left join cleared k on k.workstation_id = b.workstation_id and k.job_type = b.job_type
    where b.problems >= enough and b.problems >= 3 * coalesce(k.problems, 0)
$$;

-- Workstations and job types of which each has lately failed at least three times as many problems as the others would have
-- of those that it tried: as many in a hundred as the others failed, and one that they could have failed next, so that a few
-- which they solved prove nothing about a thousand. What was tried is what failed, and what was delivered of the newest
-- checkouts that had not ended before: as far back as both are looked at.
create function pcfarm.fails_more_than_others()
returns table (workstation_id bigint, job_type text) language sql stable as $$
    with failed as materialized (select f.* from pcfarm.failed_lately() f),
    handed_out as materialized (
        select c.workstation_id, c.job_type, c.delivered, c.checked_out_at, c.ended_at from pcfarm.checkout c
        order by c.checkout_id desc
        limit 20000),
    looked_back as materialized (
        select greatest(statement_timestamp() - interval '1 hour',
            (select min(f.failed_at) from failed f having count(*) >= 5000),
            (select min(h.checked_out_at) from handed_out h having count(*) >= 20000)) as moment),
    tried as materialized (
        select t.workstation_id, t.job_type, sum(t.failed)::float8 as failed, sum(t.failed + t.delivered)::float8 as tried
        from (
            select f.failed_on as workstation_id, f.job_type, count(distinct (f.job_id, f.problem_id)) as failed, 0 as delivered
            from failed f, looked_back b where f.failed_at >= b.moment
            group by 1, 2
            union all
            select h.workstation_id, h.job_type, 0, sum(h.delivered)
            from handed_out h, looked_back b where coalesce(h.ended_at >= b.moment and h.ended_at <= statement_timestamp(), true)
            group by 1, 2) t
        group by 1, 2),
    compared as (
        select t.*, sum(t.failed) over of_type - t.failed as others_failed, sum(t.tried) over of_type - t.tried as others_tried
        from tried t
        window of_type as (partition by t.job_type))
    select c.workstation_id, c.job_type from compared c
    where c.failed > 0 and c.failed >= 3 * c.tried * (c.others_failed + 1) / (c.others_tried + 1)
$$;

-- Quarantines workstations that fail what others solve, as the two above have it; who is not suspected is not compared. Never
-- more than a quarter of the living, but one in any case: what fails on many of them is no fault of theirs. What they hold is
-- given back. Of several servers one is at it. Returns how many there are.
create function pcfarm.quarantine_workstations()
returns bigint language plpgsql set enable_seqscan = off as $$
declare
    enough      constant integer := (select f.quarantine_after from pcfarm.farm f);
    suspected   jsonb;
    quarantined bigint;
begin
    if enough is null or not pg_try_advisory_xact_lock(hashtextextended('pcfarm.quarantine_workstations', 0)) then
        return 0;
    end if;
    select jsonb_agg(to_jsonb(s)) into suspected from pcfarm.suspects(enough) s;
    if suspected is null then
        return 0;
    end if;
    with guilty as (
        select distinct on (s.workstation_id) s.workstation_id, s.job_type, s.problems, s.evidence
        from jsonb_to_recordset(suspected) as s (workstation_id bigint, job_type text, problems bigint, evidence jsonb)
        join pcfarm.fails_more_than_others() o on o.workstation_id = s.workstation_id and o.job_type = s.job_type
        order by s.workstation_id, s.problems desc),
    room as (
        select greatest(count(*) / 4, 1) - count(*) filter (where w.quarantine is not null) as workstations
        from pcfarm.workstation w where w.state not in ('offline', 'dead')),
    worst as (
        select g.* from guilty g join pcfarm.workstation w on w.workstation_id = g.workstation_id
        where w.state not in ('offline', 'dead') and not w.drain
        order by g.problems desc, g.workstation_id
        limit (select greatest(r.workstations, 0) from room r)),
    theirs as materialized (
        select w.workstation_id from pcfarm.workstation w where w.workstation_id in (select x.workstation_id from worst x)
        order by w.workstation_id
        for update)
    update pcfarm.workstation w set drain = true, drained_by = 'the farm', drained_since = clock_timestamp(),
        drained_why = g.why, drain_deadline = clock_timestamp(), state = 'draining',
        reason = pcfarm.drain_reason('the farm', g.why, null), since = clock_timestamp(),
        quarantine = jsonb_build_object('job_type', g.job_type, 'problems', g.problems, 'evidence', g.evidence)
    from (
        select x.*, format('quarantined: it failed %s problems that others solved', x.problems) as why
        from worst x join theirs t on t.workstation_id = x.workstation_id) g
    where w.workstation_id = g.workstation_id and w.state not in ('offline', 'dead') and not w.drain;
    get diagnostics quarantined = row_count;
    if quarantined > 0 then
        perform pg_notify('pcfarm', 'drain');
    end if;
    return quarantined;
end $$;

-- Records that an identity was found on two machines: of a workstation the same details once within `every` (null: once ever),
-- whichever server notes it. Returns whether it was news.
create function pcfarm.note_clone(workstation bigint, details jsonb, every interval)
returns boolean language plpgsql as $$
declare
    its pcfarm.workstation;
begin
    -- Servers that note it at the same time take turns.
    select w.* into its from pcfarm.workstation w where w.workstation_id = workstation for update;
    if not found or exists (
        select from pcfarm.event e
        where e.workstation_id = workstation and e.what = 'workstation cloned' and e.details = note_clone.details
            and (every is null or e.happened_at > clock_timestamp() - every and e.happened_at <= clock_timestamp()))
        -- An agent that invents copies does not flood events and alerts.
        or (select count(*) from (
            select from pcfarm.event e
            where e.workstation_id = workstation and e.what = 'workstation cloned'
                and e.happened_at > clock_timestamp() - interval '1 day' and e.happened_at <= clock_timestamp()
            limit 100) e) >= 100
    then
        return false;
    end if;
    insert into pcfarm.event (what, workstation_id, subject, details)
    values ('workstation cloned', workstation, its.hostname, details);
    perform pcfarm.tell_of_workstations('workstation_cloned', coalesce(details ->> 'cloned_from', its.identity::text),
        details || jsonb_build_object('workstation_id', workstation::text, 'hostname', its.hostname));
    return true;
end $$;

-- Reports workstations whose agents have had no source for a day that tells whether a person is present: each once, until one
-- does. Returns the number of reports.
create function pcfarm.note_cannot_tell()
returns bigint language plpgsql as $$
declare
    noted jsonb;
begin
    with due as (
        select w.workstation_id from pcfarm.workstation w
        where w.cannot_tell_since < clock_timestamp() - interval '1 day' and not w.cannot_tell_told
            and w.state = 'suspended' and w.idle_source = 'none' and w.silent_since is null
        order by w.workstation_id
        limit 1000
        for update skip locked),
    told as (
        update pcfarm.workstation w set cannot_tell_told = true
        from due d where w.workstation_id = d.workstation_id
        returning w.workstation_id, w.hostname, w.reason, w.cannot_tell_since),
    event as (
        insert into pcfarm.event (what, workstation_id, subject, details)
        select 'workstation cannot tell', t.workstation_id, t.hostname,
            jsonb_build_object('reason', t.reason, 'since', t.cannot_tell_since)
        from told t order by t.workstation_id)
    select jsonb_agg(jsonb_build_object('workstation_id', t.workstation_id::text, 'hostname', t.hostname) order by t.workstation_id)
    into noted from told t;
    if noted is not null then
        perform pcfarm.tell_of_workstations('workstation_cannot_tell', noted -> 0 ->> 'workstation_id',
            jsonb_build_object('count', jsonb_array_length(noted), 'workstations', jsonb_path_query_array(noted, '$[0 to 19]')));
    end if;
    return coalesce(jsonb_array_length(noted), 0);
end $$;

-- Notes that these workstations have had results accepted.
create function pcfarm.note_worked(ids bigint[])
returns void language sql as $$
    insert into pcfarm.workstation_record as r (workstation_id, worked_at)
    select w.workstation_id, clock_timestamp() from pcfarm.workstation w where w.workstation_id = any (ids) order by w.workstation_id
    on conflict (workstation_id) do update set worked_at = excluded.worked_at, idle_days = 0, idle_on = null, told = false
    where r.worked_at is null or r.worked_at < clock_timestamp() - interval '1 hour' or r.idle_days > 0
$$;

-- Returns whether a workstation could take a problem of these jobs now, by its controllers, facts and selection.
create function pcfarm.could_take(workstation bigint, jobs bigint[])
returns boolean language sql stable as $$
    select exists (
        select from pcfarm.workstation_facts f
        left join pcfarm.selection z on z.hostname = f.hostname
        join pcfarm.job j on j.job_id = any (jobs)
        join pcfarm.queue_pointer q on q.job_id = j.job_id and q.next_extraction < q.next_insertion
        join pcfarm.job_type t on t.name = q.job_type and t.suspended_since is null
        where f.workstation_id = workstation
            and pcfarm.announced(t.controller) = any (f.controllers)
            and coalesce(z.selection -> 'required' ? j.owner::text, true)
            and not coalesce(z.selection -> 'excluded' ? j.owner::text, false)
            and coalesce(z.selection -> 'job_types' ? q.job_type, true)
            and not exists (
                select from pcfarm.farm_user u
                where u.name = j.owner and u.prohibited and not coalesce(z.selection -> 'required' ? j.owner::text, false))
            and pcfarm.meets(pcfarm.merged(t.requirement, t.labels, j.requirement), f.*))
$$;

-- Counts the days on which a workstation was connected, held nothing, and could have taken work, since its last accepted result.
-- Reports it once when the count reaches pcfarm.farm.idle_after_days. Jobs that a limit holds up do not count. Each call looks at a
-- batch of workstations, and at each of them once an hour until its day is counted. Returns the number of reports.
create function pcfarm.note_idle_workstations(batch integer default 50)
returns bigint language plpgsql as $$
declare
    day_limit constant integer := (select f.idle_after_days from pcfarm.farm f);
    today     constant date := (clock_timestamp() at time zone 'UTC')::date;
    chosen    bigint[];
    jobs      bigint[];
    noted     jsonb;
begin
    if day_limit is null then
        update pcfarm.workstation_record r set idle_days = 0, idle_on = null, told = false where r.idle_days > 0;
        return 0;
    end if;
    -- Of several servers one is at it.
    if not pg_try_advisory_xact_lock(hashtextextended('pcfarm.note_idle_workstations', 0)) then
        return 0;
    end if;
    chosen := array(
        select w.workstation_id from pcfarm.workstation w
        left join pcfarm.workstation_record r on r.workstation_id = w.workstation_id
        where w.state in ('waiting', 'suspended') and not w.drain and w.silent_since is null
            and coalesce(r.worked_at, w.registered_at) < clock_timestamp() - interval '1 day'
            and coalesce(r.idle_on < today, true)
            and coalesce(r.looked_at, '-infinity') < clock_timestamp() - interval '1 hour'
            and not exists (
                select from pcfarm.checkout c where c.workstation_id = w.workstation_id and c.ended_at is null)
        order by coalesce(r.looked_at, '-infinity'), w.workstation_id
        limit batch);
    if cardinality(chosen) = 0 or exists (select from pcfarm.farm f where f.suspended_since is not null) then
        return 0;
    end if;
    jobs := array(
        select j.job_id from pcfarm.job j
        where j.ended_at is null and j.state = 'open' and coalesce(j.not_before, '-infinity') <= clock_timestamp()
            and exists (select from pcfarm.queue_pointer q where q.job_id = j.job_id and q.next_extraction < q.next_insertion)
            and not exists (select from pcfarm.job_obstacles(j.job_id) o(why) where o.why not like '% wait for their time, %')
        order by j.job_id
        limit 100);
    insert into pcfarm.workstation_record as r (workstation_id, looked_at, idle_days, idle_on)
    select l.id, clock_timestamp(), l.could::integer, case when l.could then today end
    from (select i as id, pcfarm.could_take(i, jobs) as could from unnest(chosen) i) l
    order by l.id
    on conflict (workstation_id) do update set looked_at = excluded.looked_at, idle_days = r.idle_days + excluded.idle_days,
        idle_on = coalesce(excluded.idle_on, r.idle_on);
    with told as (
        update pcfarm.workstation_record r set told = true
        from pcfarm.workstation w
        where r.workstation_id = any (chosen) and r.idle_days >= day_limit and not r.told and w.workstation_id = r.workstation_id
        returning w.workstation_id, w.hostname, w.state, w.reason, r.worked_at, r.idle_days),
    event as (
        insert into pcfarm.event (what, workstation_id, subject, details)
        select 'workstation without work', t.workstation_id, t.hostname, jsonb_strip_nulls(jsonb_build_object('days', t.idle_days,
            'worked_at', t.worked_at, 'state', t.state, 'reason', nullif(t.reason, '')))
        from told t order by t.workstation_id)
    select jsonb_agg(jsonb_build_object('workstation_id', t.workstation_id::text, 'hostname', t.hostname) order by t.workstation_id)
    into noted from told t;
    if noted is not null then
        perform pcfarm.tell_of_workstations('workstation_without_work', noted -> 0 ->> 'workstation_id',
            jsonb_build_object('days', day_limit, 'count', jsonb_array_length(noted),
                'workstations', jsonb_path_query_array(noted, '$[0 to 19]')));
    end if;
    return coalesce(jsonb_array_length(noted), 0);
end $$;

revoke all on routine pcfarm.note_clone(bigint, jsonb, interval), pcfarm.note_cannot_tell(), pcfarm.note_worked(bigint[]),
    pcfarm.could_take(bigint, bigint[]), pcfarm.note_idle_workstations(integer) from public;
revoke all on routine pcfarm.failed_lately(), pcfarm.suspects(integer), pcfarm.fails_more_than_others(),
    pcfarm.quarantine_workstations() from public;
revoke all on routine pcfarm.drainer(), pcfarm.drain_reason(text, text, timestamptz),
    pcfarm.forget_workstations(bigint[], boolean), pcfarm.no_presence(text, jsonb, text), pcfarm.are_hours(jsonb),
    pcfarm.set_presence(text[], jsonb) from public;
do $$
begin
    if exists (select from pg_roles where rolname = 'pcfarm_loader') then
        grant select on pcfarm.forgotten_workstation to pcfarm_loader;
    end if;
end $$;
