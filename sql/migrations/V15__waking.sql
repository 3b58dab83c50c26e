-- Waking workstations that sleep: because somebody asks for it, or because there is work for them at night. Whoever may be woken
-- is their owners' to say; their agents tell the farm by which network card, or nothing.

-- Workstations that are being woken, until they are back or were tried often enough.
create table pcfarm.wake (
    workstation_id bigint primary key,
    asked_by       text not null,
    asked_at       timestamptz not null default clock_timestamp(),
    tries          integer not null default 0,
    next_try_at    timestamptz not null default clock_timestamp()
);

-- Whether a packet would do anything: who is heard is awake.
create function pcfarm.sleeps(its pcfarm.workstation)
returns boolean language sql immutable as $$
    select its.state in ('offline', 'dead') or its.asleep or its.silent_since is not null
$$;

create function pcfarm.begin_waking(ids bigint[], who text)
returns bigint language plpgsql as $$
declare
    begun bigint;
begin
    with begun as (
        insert into pcfarm.wake as k (workstation_id, asked_by)
        select w.workstation_id, who from pcfarm.workstation w
        where w.workstation_id = any (ids) and pcfarm.sleeps(w) and w.wake_card is not null
        order by w.workstation_id
        -- Whoever asks again wants it to be tried again, and not twice at a time.
        on conflict (workstation_id) do update set tries = 0
        returning k.workstation_id, k.xmax = 0 as is_new),
    marked as (
        update pcfarm.workstation w set woken_at = clock_timestamp()
        from begun b where b.workstation_id = w.workstation_id and b.is_new),
    noted as (
        insert into pcfarm.event (what, workstation_id, subject, details)
        select 'workstation wake', w.workstation_id, w.hostname, jsonb_build_object('by', who)
        from begun b join pcfarm.workstation w on w.workstation_id = b.workstation_id where b.is_new
        order by w.workstation_id)
    select count(*) into begun from begun;
    return begun;
end $$;

-- Wakes those that sleep; of others there is nothing to do. All of them or, if one is not there or must not be woken, none.
create function pcfarm.wake(ids bigint[])
returns void language plpgsql as $$
declare
    missing   bigint[];
    unwilling text;
begin
    perform pcfarm.check_transaction();
    select array_agg(i order by i) into missing from unnest(ids) i
    where not exists (select from pcfarm.workstation w where w.workstation_id = i);
    if missing is not null then
        raise exception 'there is no workstation %', array_to_string(missing[:10], ', ') using errcode = 'no_data_found';
    end if;
    select string_agg(l.hostname, ', ' order by l.workstation_id) filter (where l.n <= 5)
        || case when count(*) > 5 then format(' and %s more', count(*) - 5) else '' end
    into unwilling
    from (select w.workstation_id, w.hostname, row_number() over (order by w.workstation_id) as n
        from pcfarm.workstation w where w.workstation_id = any (ids) and w.wake_card is null) l;
    if unwilling is not null then
        raise exception '% cannot be woken: nothing was said of a network card', unwilling
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Their owners allow it by wake = true in the table [sleep] of their agents'' settings.';
    end if;
    perform pcfarm.begin_waking(ids, pcfarm.drainer());
end $$;
comment on function pcfarm.wake is
    'Wakes workstations that sleep, by a magic packet that a server sends. Their owners must allow it: wake = true in the table '
    '[sleep] of their agents'' settings.';

-- Whether one of these hours of the week holds at that time by the clock on the wall; hours that go beyond midnight belong to the
-- day on which they begin.
create function pcfarm.in_hours(hours jsonb, moment timestamp)
returns boolean language sql immutable as $$
    select exists (
        select from jsonb_array_elements_text(hours) h
        cross join lateral regexp_match(lower(h), '^([a-z,-]*) ?(([0-9]+:[0-9]+)-([0-9]+:[0-9]+))?$') m
        cross join lateral (select m[1] as days, m[3]::interval as begins, m[4]::interval as ends, moment - date_trunc('day', moment) as now) w
        cross join lateral (
            select coalesce(bool_or((today - first + 7) % 7 <= (last - first + 7) % 7), w.days = '') as today,
                coalesce(bool_or((today - first + 6) % 7 <= (last - first + 7) % 7), w.days = '') as yesterday
            from unnest(string_to_array(nullif(w.days, ''), ',')) p
            cross join lateral (
                select extract(isodow from moment)::integer as today,
                    array_position(array['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'], split_part(p, '-', 1)) as first,
                    array_position(array['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'],
                        coalesce(nullif(split_part(p, '-', 2), ''), p)) as last) d) d
        where case when w.begins is null then d.today
            when w.begins < w.ends then d.today and w.now >= w.begins and w.now < w.ends
            else d.today and w.now >= w.begins or d.yesterday and w.now < w.ends end)
$$;

-- Whether there is something, or will be before a workstation that is woken now begins to work, that it could take.
create function pcfarm.has_work_for(workstation bigint)
returns boolean language sql stable as $$
    select exists (
        select from pcfarm.workstation_facts f
        cross join pcfarm.farm o
        join pcfarm.job j on j.ended_at is null and j.state = 'open'
            and coalesce(j.not_before, '-infinity') <= clock_timestamp() + interval '20 minutes'
        join pcfarm.queue_pointer q on q.job_id = j.job_id and q.next_extraction < q.next_insertion
        join pcfarm.job_type t on t.name = q.job_type and t.suspended_since is null
        where f.workstation_id = workstation and o.suspended_since is null
            and pcfarm.announced(t.controller) = any (f.controllers)
            and not exists (select from pcfarm.waits_for(j.job_id))
            and pcfarm.meets(pcfarm.merged(t.requirement, t.labels, j.requirement), f.*))
$$;

-- Wakes those for which there is work in the hours in which administrators want them to be woken: each at most once an hour, and not
-- more at a time than there are convoys left. Of several servers one is at it. Returns how many there are.
create function pcfarm.wake_for_work()
returns bigint language plpgsql as $$
declare
    convoys bigint;
    chosen  bigint[];
begin
    if not exists (select from pcfarm.presence r where r.wanted ? 'wake_hours')
        or not pg_try_advisory_xact_lock(hashtextextended('pcfarm.wake_for_work', 0))
    then
        return 0;
    end if;
    select array_agg(w.workstation_id order by w.workstation_id) into chosen
    from pcfarm.presence r
    join pcfarm.workstation w on w.hostname = r.hostname
    where pcfarm.in_hours(r.wanted -> 'wake_hours', clock_timestamp() at time zone coalesce(r.wanted ->> 'wake_time_zone', 'UTC'))
        and w.wake_card is not null and pcfarm.sleeps(w) and not w.drain
        and coalesce(w.woken_at < clock_timestamp() - interval '1 hour', true);
    if chosen is null then
        return 0;
    end if;
    select sum(q.next_insertion - q.next_extraction) into convoys
    from pcfarm.queue_pointer q where q.job_state = 'open' and q.next_extraction < q.next_insertion;
    if convoys is null then
        return 0;
    end if;
    select array_agg(c.id) into chosen
    from (select i as id from unnest(chosen) i where pcfarm.has_work_for(i) limit least(convoys, 1000)) c;
    return pcfarm.begin_waking(coalesce(chosen, '{}'), 'the farm');
end $$;

-- What a server is to send now: each try of each workstation is one server's. Those that are back, or were tried for five
-- minutes, are done with.
create function pcfarm.claim_wakes()
returns table (workstation_id bigint, hostname text, card text, address text, try integer) language plpgsql as $$
begin
    if not exists (select from pcfarm.wake) then
        return;
    end if;
    with ended as (
        delete from pcfarm.wake k
        where not exists (
                select from pcfarm.workstation w
                where w.workstation_id = k.workstation_id and pcfarm.sleeps(w) and w.wake_card is not null)
            or k.tries >= 10 and k.next_try_at <= clock_timestamp()
        returning k.*)
    insert into pcfarm.event (what, workstation_id, subject, details)
    select 'workstation ' || case when pcfarm.sleeps(w) then 'not woken' else 'woken' end, w.workstation_id, w.hostname,
        jsonb_build_object('by', e.asked_by, 'tries', e.tries)
    from ended e join pcfarm.workstation w on w.workstation_id = e.workstation_id;
    return query
        with due as (
            select k.workstation_id from pcfarm.wake k where k.next_try_at <= clock_timestamp()
            order by k.workstation_id
            limit 1000
            for update skip locked),
        claimed as (
            update pcfarm.wake k set tries = k.tries + 1, next_try_at = clock_timestamp() + interval '30 seconds'
            from due d where k.workstation_id = d.workstation_id
            returning k.workstation_id, k.tries)
        select w.workstation_id, w.hostname, w.wake_card,
            coalesce(r.wanted ->> 'wake_address', w.wake_broadcast, '255.255.255.255'), c.tries
        from claimed c
        join pcfarm.workstation w on w.workstation_id = c.workstation_id
        left join pcfarm.presence r on r.hostname = w.hostname
        order by w.workstation_id;
end $$;

revoke all on routine pcfarm.sleeps(pcfarm.workstation), pcfarm.begin_waking(bigint[], text), pcfarm.wake(bigint[]),
    pcfarm.in_hours(jsonb, timestamp), pcfarm.has_work_for(bigint), pcfarm.wake_for_work(), pcfarm.claim_wakes() from public;
