-- Limits of job types by weekday and time of day, and under conditions.

-- Numbers that change with the world outside: supplied by users, or by servers for those that they know themselves.
create table pcfarm.signal (
    name     text primary key constraint signal_name check (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
    value    double precision not null,
    said_at  timestamptz not null,
    -- What was said longer ago is not known any more.
    holds_for interval not null default '5 minutes' 
              constraint holds_for_range check (holds_for > interval '0' and holds_for <= interval '1 year')
);

create table pcfarm.profile (
    profile_id            bigint generated always as identity primary key,
    job_type              text not null references pcfarm.job_type on delete cascade,
    -- ISO: 1 is Monday. A window that crosses midnight belongs to the day on which it starts.
    weekdays              smallint[] not null,
    starts                time not null,
    ends                  time not null,
    time_zone             text not null,
    problems_per_hour     bigint constraint problems_per_hour_not_negative check (problems_per_hour >= 0),
    problems_per_checkout integer constraint problems_per_checkout_positive check (problems_per_checkout > 0),
    priority              integer,
    -- {"signal": {"at_least": 1, "below": 2}}
    conditions            jsonb not null default '{}',
    -- Derived: the seconds of a week, from Monday 0:00 by the clocks of that time zone, and what ranks it.
    covers                int4multirange not null,
    conditions_count      integer not null,
    covered_seconds       integer not null,
    created_at            timestamptz not null default clock_timestamp()
);
create index profile_by_job_type on pcfarm.profile (job_type);

-- What was handed out under an entry that limits problems by the hour: a row with each call, with what it handed out, and the
-- total of that and all before. A total that each call changed would leave a version with every one of them, which all later
-- ones step over while somebody has a snapshot open.
create table pcfarm.handed_out (
    profile_id bigint not null,
    at         timestamptz not null,
    weight     bigint not null,
    total      bigint not null,
    primary key (profile_id, at)
);
create index handed_out_by_time on pcfarm.handed_out (at);

-- How long an hour is: a test's may be shorter.
create function pcfarm.hour()
returns interval language sql stable as $$
    select coalesce(nullif(current_setting('pcfarm.hour', true), '')::interval, interval '1 hour')
$$;

-- The weight of what was handed out under an entry in the hour that ends now.
create function pcfarm.handed_out_in_an_hour(profile_id bigint)
returns bigint language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    -- From the first of the hour to the last. The clock is asked in a query of its own, once: else the index would not do.
    select coalesce((
        select (
            select h.total from pcfarm.handed_out h
            where h.profile_id = handed_out_in_an_hour.profile_id
            order by h.at desc limit 1) - f.total + f.weight
        from (
            select h.total, h.weight from pcfarm.handed_out h
            where h.profile_id = handed_out_in_an_hour.profile_id and h.at > (select clock_timestamp() - pcfarm.hour())
            order by h.at limit 1) f), 0)
$$;

-- What no limit looks at any more goes, at most 10,000 rows of it: what is older than `since` has gone, unless a clock that was
-- ahead said so. Returns until when it came.
create function pcfarm.forget_hand_outs(since timestamptz)
returns timestamptz language plpgsql set enable_seqscan = off as $$
declare
    came_to timestamptz;
begin
    if not pcfarm.clock_is_proven() then
        return null;
    end if;
    with old as materialized (
        select h.profile_id, h.at from pcfarm.handed_out h
        where h.at >= coalesce((select since where since < clock_timestamp() - 2 * pcfarm.hour()), '-infinity')
            and h.at < (select clock_timestamp() - 2 * pcfarm.hour())
        order by h.at limit 10000
        for update skip locked),
    gone as (
        delete from pcfarm.handed_out h using old o where h.profile_id = o.profile_id and h.at = o.at
        returning h.at)
    select max(g.at) into came_to from gone g;
    return came_to;
end $$;

-- What was handed out by a clock that was ahead counts from now on, when it has been put right: it would count until that moment
-- comes again. What is handed out waits meanwhile, or this does until the next time.
create function pcfarm.put_hand_outs_right()
returns void language plpgsql as $$
declare
    ahead text[];
begin
    -- A clock that is behind takes hand-outs of the right time for such (V17__clock.sql).
    if not exists (select from pcfarm.handed_out h where h.at > (select clock_timestamp() + interval '1 second'))
        or pcfarm.clock_is_behind()
    then
        return;
    end if;
    select array_agg(l.name) into ahead
    from (
        select t.name from pcfarm.job_type t
        where t.name in (
            select p.job_type from pcfarm.profile p join pcfarm.handed_out h on h.profile_id = p.profile_id
            where h.at > (select clock_timestamp() + interval '1 second'))
        order by t.name for no key update skip locked) l;
    with gone as (
        delete from pcfarm.handed_out h using pcfarm.profile p
        where p.job_type = any (ahead) and h.profile_id = p.profile_id and h.at > (select clock_timestamp())
        returning h.profile_id, h.weight, h.total)
    insert into pcfarm.handed_out (profile_id, at, weight, total)
    select g.profile_id, clock_timestamp(), sum(g.weight), max(g.total) from gone g group by g.profile_id;
end $$;

-- Entries ---------------------------------------------------------------------------------------------------------------

-- From names ("mon", "sat-wed") to ISO numbers.
create function pcfarm.weekdays_of(given jsonb)
returns smallint[] language plpgsql immutable as $$
declare
    names constant text[] := array['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];
    part  text;
    ends  text[];
    one   integer;
    last  integer;
    found smallint[] := '{}';
begin
    if given is null or given = 'null' then
        return array[1, 2, 3, 4, 5, 6, 7];
    end if;
    for part in
        select btrim(lower(p)) from (
            select jsonb_array_elements_text(case jsonb_typeof(given) when 'array' then given else '[]' end) as p
            union all
            select regexp_split_to_table(given #>> '{}', ',') where jsonb_typeof(given) = 'string') parts
    loop
        ends := string_to_array(part, '-');
        one := array_position(names, left(btrim(ends[1]), 3));
        last := coalesce(array_position(names, left(btrim(ends[2]), 3)), case when cardinality(ends) = 1 then one end);
        if one is null or last is null or cardinality(ends) > 2 then
            raise exception 'there is no weekday %', quote_literal(part) using errcode = 'invalid_parameter_value',
                hint = 'Weekdays are mon, tue, wed, thu, fri, sat and sun, or spans of them such as sat-wed.';
        end if;
        loop
            found := found || one::smallint;
            exit when one = last;
            one := one % 7 + 1;
        end loop;
    end loop;
    select array_agg(distinct d order by d) into found from unnest(found) d;
    if found is null then
        raise exception 'no weekday is given' using errcode = 'invalid_parameter_value',
            hint = 'Leave weekdays out for all of them.';
    end if;
    return found;
end $$;

-- Seconds of a week. A time of day that ends where it starts is a whole day.
create function pcfarm.seconds_covered(weekdays smallint[], starts time, ends time)
returns int4multirange language sql immutable as $$
    select range_agg(s.part) from unnest(weekdays) d
    cross join lateral (
        select (d - 1) * 86400 + extract(epoch from starts)::integer as first,
            (d - 1) * 86400 + extract(epoch from ends)::integer + case when ends <= starts then 86400 else 0 end as last) t
    cross join lateral (values (int4range(t.first, least(t.last, 604800))), (int4range(0, greatest(t.last - 604800, 0)))) s(part)
$$;

create function pcfarm.second_of_week(moment timestamptz, time_zone text)
returns integer language sql stable as $$
    select ((extract(isodow from t)::integer - 1) * 86400 + floor(extract(epoch from t::time)))::integer
    from (select moment at time zone time_zone as t) l
$$;

-- Do they ever hold at the same time? Zones may drift apart with their summer times: asked for each month of a year.
create function pcfarm.overlap(one pcfarm.profile, other pcfarm.profile)
returns boolean language sql stable as $$
    select not exists (
        -- A signal that cannot satisfy both.
        select from jsonb_each(one.conditions) a
        join jsonb_each(other.conditions) b on b.key = a.key
        where (a.value ->> 'below')::float8 <= (b.value ->> 'at_least')::float8
            or (b.value ->> 'below')::float8 <= (a.value ->> 'at_least')::float8)
    and exists (
        select from (
            select distinct (pcfarm.second_of_week(m, one.time_zone) - pcfarm.second_of_week(m, other.time_zone) + 604800) % 604800 as ahead
            from generate_series(date_trunc('day', now()), now() + interval '1 year', interval '1 month') m) z
        cross join unnest(other.covers) c
        cross join lateral (values (lower(c) + z.ahead, upper(c) + z.ahead),
            (lower(c) + z.ahead - 604800, upper(c) + z.ahead - 604800)) s(first, last)
        where one.covers && int4range(s.first, s.last))
$$;

create function pcfarm.range_text(range jsonb)
returns text language sql immutable as $$
    select concat_ws(' and ', 'at least ' || (range ->> 'at_least'), 'below ' || (range ->> 'below'))
$$;

create function pcfarm.profile_text(p pcfarm.profile)
returns text language sql stable as $$
    select format('profile entry %s (%s %s to %s %s%s)', p.profile_id,
        (select string_agg((array['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'])[d], ',' order by d) from unnest(p.weekdays) d),
        to_char(p.starts, 'HH24:MI'), to_char(p.ends, 'HH24:MI'), p.time_zone,
        (select string_agg(format(', %s %s', c.key, pcfarm.range_text(c.value)), '' order by c.key) from jsonb_each(p.conditions) c))
$$;

create function pcfarm.check_options(options jsonb, known text[], what text)
returns void language plpgsql immutable as $$
declare
    unknown text;
begin
    if jsonb_typeof(coalesce(options, '{}')) <> 'object' then
        raise exception '%: options must be a JSON object', what using errcode = 'invalid_parameter_value';
    end if;
    select string_agg(quote_literal(o.key), ', ') into unknown
    from jsonb_object_keys(coalesce(options, '{}')) as o(key) where o.key <> all (known);
    if unknown is not null then
        raise exception '%: no such option: %', what, unknown
            using errcode = 'invalid_parameter_value', hint = format('Options are %s.', array_to_string(known, ', '));
    end if;
end $$;

create function pcfarm.set_profile(job_type text, options jsonb, profile bigint default null)
returns bigint language plpgsql as $$
declare
    known   constant text[] := array['weekdays', 'from', 'to', 'time_zone', 'problems_per_hour', 'problems_per_checkout',
        'priority', 'when'];
    entry   pcfarm.profile;
    rival   pcfarm.profile;
    wrong   text;
begin
    perform pcfarm.check_transaction();
    perform pcfarm.job_type_must_exist(set_profile.job_type);
    perform pcfarm.check_options(options, known, 'profile of job type ' || set_profile.job_type);
    -- One at a time: what is refused is decided by the others.
    perform from pcfarm.job_type t where t.name = set_profile.job_type for no key update;
    if profile is not null then
        select p.* into entry from pcfarm.profile p where p.profile_id = profile and p.job_type = set_profile.job_type;
        if not found then
            raise exception 'job type % has no profile entry %', set_profile.job_type, profile
                using errcode = 'no_data_found', hint = 'See pcfarm.profile_status.';
        end if;
    end if;
    entry.job_type := set_profile.job_type;
    if profile is null or options ? 'weekdays' then
        entry.weekdays := pcfarm.weekdays_of(options -> 'weekdays');
    end if;
    entry.starts := case when profile is null or options ? 'from' then coalesce(options ->> 'from', '00:00')::time else entry.starts end;
    entry.ends := case when profile is null or options ? 'to' then coalesce(options ->> 'to', '24:00')::time else entry.ends end;
    entry.time_zone := case when profile is null or options ? 'time_zone' then coalesce(options ->> 'time_zone', current_setting('TimeZone'))
        else entry.time_zone end;
    if not exists (select from pg_timezone_names z where lower(z.name) = lower(entry.time_zone)) then
        raise exception 'there is no time zone %', quote_literal(entry.time_zone) using errcode = 'invalid_parameter_value',
            hint = 'Names are like Europe/Berlin; see pg_timezone_names.';
    end if;
    if options ? 'problems_per_hour' then entry.problems_per_hour := (options ->> 'problems_per_hour')::bigint; end if;
    if options ? 'problems_per_checkout' then entry.problems_per_checkout := (options ->> 'problems_per_checkout')::integer; end if;
    if options ? 'priority' then entry.priority := (options ->> 'priority')::integer; end if;
    if profile is null or options ? 'when' then
        entry.conditions := coalesce(nullif(options -> 'when', 'null'), '{}');
    end if;
    if jsonb_typeof(entry.conditions) <> 'object' then
        wrong := 'when';
    else
        select c.key into wrong from jsonb_each(entry.conditions) c
        where c.key !~ '^[A-Za-z0-9_.-]{1,63}$' or jsonb_typeof(c.value) <> 'object' or c.value = '{}' or exists (
            select from jsonb_each(case jsonb_typeof(c.value) when 'object' then c.value else '{}' end) b
            where b.key not in ('at_least', 'below') or jsonb_typeof(b.value) <> 'number') limit 1;
    end if;
    if wrong is not null then
        raise exception 'profile of job type %: no condition: %', set_profile.job_type, wrong
            using errcode = 'invalid_parameter_value',
                  hint = 'A condition is like {"web_users": {"at_least": 10, "below": 100}}, with one bound or both.';
    end if;
    entry.covers := pcfarm.seconds_covered(entry.weekdays, entry.starts, entry.ends);
    entry.covered_seconds := (select sum(upper(r) - lower(r)) from unnest(entry.covers) r);
    entry.conditions_count := (select count(*) from jsonb_object_keys(entry.conditions));
    entry.profile_id := coalesce(profile, nextval('pcfarm.profile_profile_id_seq'));
    select p.* into rival from pcfarm.profile p
    where p.job_type = entry.job_type and p.profile_id <> entry.profile_id
        and p.conditions_count = entry.conditions_count and p.covered_seconds = entry.covered_seconds
        and pcfarm.overlap(p, entry)
    order by p.profile_id limit 1;
    if found then
        raise exception 'job type %: % and % are equally specific and overlap: nothing says which of them holds', entry.job_type,
                pcfarm.profile_text(rival), replace(pcfarm.profile_text(entry), 'profile entry ' || entry.profile_id,
                    case when profile is null then 'this one' else 'profile entry ' || profile end)
            using errcode = 'invalid_parameter_value',
                  hint = 'The entry with more conditions holds, and of those with as many the one that covers less of the week.';
    end if;
    insert into pcfarm.profile as p overriding system value select entry.profile_id, entry.job_type, entry.weekdays, entry.starts,
        entry.ends, entry.time_zone, entry.problems_per_hour, entry.problems_per_checkout, entry.priority, entry.conditions,
        entry.covers, entry.conditions_count, entry.covered_seconds, coalesce(entry.created_at, clock_timestamp())
    on conflict (profile_id) do update set weekdays = excluded.weekdays, starts = excluded.starts, ends = excluded.ends,
        time_zone = excluded.time_zone, problems_per_hour = excluded.problems_per_hour,
        problems_per_checkout = excluded.problems_per_checkout, priority = excluded.priority, conditions = excluded.conditions,
        covers = excluded.covers, conditions_count = excluded.conditions_count, covered_seconds = excluded.covered_seconds;
    perform pg_notify('pcfarm', 'work');
    return entry.profile_id;
end $$;
comment on function pcfarm.set_profile is
    'Adds an entry to a job type''s profile, or changes one (what is not named stays), and returns its id. Options: weekdays '
    '("sat-wed" or ["mon", "tue"]; all), from and to ("07:00"; a window may cross midnight), time_zone, problems_per_hour, '
    'problems_per_checkout, priority, when ({"signal": {"at_least": 1, "below": 2}}).';

create function pcfarm.delete_profile(profile bigint)
returns void language plpgsql as $$
begin
    delete from pcfarm.profile p where p.profile_id = delete_profile.profile;
    if not found then
        raise exception 'there is no profile entry %', delete_profile.profile
            using errcode = 'no_data_found', hint = 'See pcfarm.profile_status.';
    end if;
    delete from pcfarm.handed_out h where h.profile_id = delete_profile.profile;
    perform pg_notify('pcfarm', 'work');
end $$;

-- Signals ---------------------------------------------------------------------------------------------------------------

create function pcfarm.set_signal(name text, value double precision, holds_for interval default '5 minutes')
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pcfarm.check_transaction();
    if value is null then
        delete from pcfarm.signal s where s.name = set_signal.name;
    else
        insert into pcfarm.signal (name, value, said_at, holds_for)
        values (set_signal.name, set_signal.value, clock_timestamp(), coalesce(set_signal.holds_for, '5 minutes'))
        on conflict on constraint signal_pkey do update set value = excluded.value, said_at = excluded.said_at,
            holds_for = excluded.holds_for;
    end if;
    perform pg_notify('pcfarm', 'work');
end $$;
comment on function pcfarm.set_signal is
    'Says what a signal that profiles ask for is now; it is not known any more when nobody has said it for holds_for. Null '
    'forgets it.';

-- The signals that a server knows, if some profile asks for them: which share of the connected workstations is idle, and
-- load and free memory of the machine that PostgreSQL runs on, if this role may read them.
create function pcfarm.sample_signals()
returns void language plpgsql as $$
declare
    wanted text[];
begin
    select array_agg(distinct c) into wanted from pcfarm.profile p cross join jsonb_object_keys(p.conditions) c;
    if 'idle_share' = any (wanted) then
        perform pcfarm.set_signal('idle_share', coalesce(avg(case when w.state = 'waiting' and not exists (
                select from pcfarm.checkout c where c.workstation_id = w.workstation_id and c.ended_at is null)
            then 1.0 else 0.0 end), 0), '30 seconds')
        from pcfarm.workstation w where w.state not in ('offline', 'dead') and not w.disconnected;
    end if;
    if wanted && array['database_load', 'database_free_memory'] then
        begin
            perform pcfarm.set_signal('database_load', split_part(pg_read_file('/proc/loadavg'), ' ', 1)::float8, '30 seconds');
            perform pcfarm.set_signal('database_free_memory',
                (regexp_match(pg_read_file('/proc/meminfo'), E'MemAvailable: *(\\d+) kB'))[1]::float8 * 1024, '30 seconds');
        exception
            -- Then they are not known, unless somebody else says them.
            when insufficient_privilege or undefined_file then null;
        end;
    end if;
end $$;

-- Which entry holds -----------------------------------------------------------------------------------------------------

-- Why an entry does not hold at a moment, with signals as they are now; null: it may.
create function pcfarm.why_not(p pcfarm.profile, moment timestamptz)
returns text language sql stable as $$
    select coalesce(
        case when not p.covers @> pcfarm.second_of_week(moment, p.time_zone) then
            'it is ' || to_char(moment at time zone p.time_zone, 'Dy HH24:MI') || ' in ' || p.time_zone end,
        (select string_agg(case when s.name is null then format('signal %s is not known', c.key)
                else format('%s is %s, not %s', c.key, s.value, pcfarm.range_text(c.value)) end, '; ' order by c.key)
        from jsonb_each(p.conditions) c
        left join pcfarm.signal s on s.name = c.key and s.said_at + s.holds_for > clock_timestamp()
        where not coalesce(s.value >= coalesce((c.value ->> 'at_least')::float8, '-infinity')
            and s.value < coalesce((c.value ->> 'below')::float8, 'infinity'), false)))
$$;

-- More conditions first, then less of the week: set_profile refuses what this would leave open.
create function pcfarm.profile_at(job_type text, moment timestamptz default clock_timestamp())
returns setof pcfarm.profile language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select p.* from pcfarm.profile p
    where p.job_type = profile_at.job_type and pcfarm.why_not(p, moment) is null
    order by p.conditions_count desc, p.covered_seconds, p.profile_id
    limit 1
$$;

create function pcfarm.explain_profile(job_type text, moment timestamptz default clock_timestamp())
returns table (profile_id bigint, entry text, holds boolean, reason text, problems_per_hour bigint, used bigint,
    problems_per_checkout integer, priority integer)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pcfarm.job_type_must_exist(explain_profile.job_type);
    return query
    select p.profile_id, pcfarm.profile_text(p), h.profile_id is not distinct from p.profile_id,
        coalesce(pcfarm.why_not(p, moment),
            case when h.profile_id = p.profile_id then 'it holds' else 'entry ' || h.profile_id || ' is more specific' end),
        p.problems_per_hour, pcfarm.handed_out_in_an_hour(p.profile_id), p.problems_per_checkout, p.priority
    from pcfarm.profile p
    left join pcfarm.profile_at(explain_profile.job_type, moment) h on true
    where p.job_type = explain_profile.job_type
    order by p.conditions_count desc, p.covered_seconds, p.profile_id;
end $$;
comment on function pcfarm.explain_profile is
    'The entries of a job type''s profile, the most specific first, which of them holds at a moment, and why the others do not.';
