-- Registers workstations or takes their connections over, each identity at most once. Says which instance spoke for each before,
-- and whether it had been declared dead: read before the row is written. Rows are locked in order before any is written, and new
-- ones are written in order, so that two servers that register the same ones do not wait for each other in a circle. A session's
-- number is drawn under its row's lock, so that of two connections the one that comes last has the newer. Controllers come as pairs
-- of a position ($10, from 1) and a name ($11), and so do labels ($12, $13), GPUs ($16, $17) and programs ($18, $19). $20 are the
-- sources that prove absence, and $21 the power supply. $22 to $24 say how often and how quickly each gave way. $25 are the
-- presence settings as texts of JSON. $26 and $27 say how each can be woken. Findings about presence sources are pairs, too ($31,
-- $32).
--
-- An identity belongs to the machine ($28) that registered it. Another machine is refused. The exception: its owner has bound the
-- identity anew from the registered machine (pairs of a position, $29, and a digest, $30), and no agent is heard under it. While an
-- agent is heard, another instance is refused: the connected agent stays. `answered` says that the connected agent has answered its
-- server a moment ago; without that the caller has it asked and tries again. A refused identity changes nothing.
--
-- No agent is heard by a server that has stopped. A running server writes a pulse every second, so one that is 4 s
-- behind the newest pulse has stopped. After an outage of the database all pulses are equally old.
with asked as materialized (
    select a.*
    from unnest($1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::bigint[], $6::text[], $7::text[], $8::text[],
        $14::text[], $15::text[], $20::text[], $21::text[],
        $22::integer[], $23::bigint[], $24::bigint[], $25::text[], $26::text[], $27::text[], $28::bytea[])
        with ordinality
        as a(identity, instance, hostname, cores, memory_bytes, system, agent_version, state, system_name, arch, idle_source,
            power, yields, yield_p50_ms, yield_p99_ms, presence, wake_card, wake_broadcast, machine, position)),
offered as materialized (
    select o.position, array_agg(o.controller order by o.n) as controllers
    from unnest($10::integer[], $11::text[]) with ordinality as o(position, controller, n)
    group by o.position),
labelled as materialized (
    select o.position, array_agg(o.label order by o.n) as labels
    from unnest($12::integer[], $13::text[]) with ordinality as o(position, label, n)
    group by o.position),
with_gpus as materialized (
    select o.position, array_agg(o.gpu order by o.n) as gpus
    from unnest($16::integer[], $17::text[]) with ordinality as o(position, gpu, n)
    group by o.position),
with_programs as materialized (
    select o.position, array_agg(o.program order by o.n) as programs
    from unnest($18::integer[], $19::text[]) with ordinality as o(position, program, n)
    group by o.position),
before as materialized (
    select o.position, array_agg(o.machine) as machines
    from unnest($29::integer[], $30::bytea[]) as o(position, machine)
    group by o.position),
noted as materialized (
    select o.position, array_agg(o.note order by o.n) as notes
    from unnest($31::integer[], $32::text[]) with ordinality as o(position, note, n)
    group by o.position),
prior as materialized (
    select w.workstation_id, w.identity, w.instance, w.session, w.machine, w.state, w.hostname,
        w.silent_since is null and w.state not in ('offline', 'dead') and not exists (
            select from pcfarm.server s
            where s.server_id = w.server_id and (s.stopped_at is not null or s.heard_at
                < (select max(r.heard_at) from pcfarm.server r where r.stopped_at is null) - interval '4 seconds')) as heard,
        coalesce(w.answered_at between clock_timestamp() - interval '10 seconds' and clock_timestamp() + interval '10 seconds',
            false) as answered
    from pcfarm.workstation w
    where w.identity = any ($1)
    order by w.workstation_id
    for update),
refused as materialized (
    select a.position,
        case when a.machine <> p.machine and not coalesce(p.machine = any (b.machines), false) then 'another machine'
            when a.machine <> p.machine and p.heard then 'bound anew while in use'
            when a.machine is null and p.machine is not null and p.heard and a.instance <> p.instance then 'no machine'
            when a.instance <> p.instance and p.heard then 'two agents' end as why
    from asked a
    join prior p on p.identity = a.identity
    left join before b on b.position = a.position),
connected as (
    insert into pcfarm.workstation as w (identity, instance, hostname, cores, memory_bytes, system, agent_version,
        system_name, arch, gpus, programs, controllers, labels, state, session, server_id, idle_source, power, yields, yield_p50_ms, yield_p99_ms, presence,
        wake_card, wake_broadcast, machine, cannot_tell_since, presence_notes)
    select a.identity, a.instance, a.hostname, a.cores, a.memory_bytes, a.system, a.agent_version,
        a.system_name, a.arch, coalesce(g.gpus, '{}'), coalesce(r.programs, '{}'), coalesce(o.controllers, '{}'),
        coalesce(l.labels, '{}'), a.state, nextval('pcfarm.session_number'), $9, a.idle_source, a.power,
        a.yields, a.yield_p50_ms, a.yield_p99_ms, a.presence::jsonb, a.wake_card, a.wake_broadcast, a.machine,
        case when a.idle_source = 'none' then clock_timestamp() end, coalesce(t.notes, '{}')
    from asked a
    left join prior p on p.identity = a.identity
    left join offered o on o.position = a.position
    left join labelled l on l.position = a.position
    left join with_gpus g on g.position = a.position
    left join with_programs r on r.position = a.position
    left join noted t on t.position = a.position
    where not exists (select from refused f where f.position = a.position and f.why is not null)
    order by p.workstation_id, a.identity
    on conflict (identity) do update set
        instance = excluded.instance,
        machine = coalesce(excluded.machine, w.machine), hostname = excluded.hostname, cores = excluded.cores,
        memory_bytes = excluded.memory_bytes, system = excluded.system, agent_version = excluded.agent_version,
        system_name = excluded.system_name, arch = excluded.arch, gpus = excluded.gpus, programs = excluded.programs,
        controllers = excluded.controllers, labels = excluded.labels, session = excluded.session, server_id = excluded.server_id,
        state = case when w.drain then 'draining' else excluded.state end,
        since = case when w.state = case when w.drain then 'draining' else excluded.state end then w.since
                     else clock_timestamp() end,
        reason = case when w.drain then pcfarm.drain_reason(w.drained_by, w.drained_why, w.drain_deadline) else '' end,
        idle_source = excluded.idle_source, power = excluded.power,
        yields = excluded.yields, yield_p50_ms = excluded.yield_p50_ms, yield_p99_ms = excluded.yield_p99_ms,
        presence = excluded.presence, wake_card = excluded.wake_card, wake_broadcast = excluded.wake_broadcast, asleep = false,
        presence_notes = excluded.presence_notes,
        cannot_tell_since = case when excluded.idle_source = 'none' then coalesce(w.cannot_tell_since, excluded.cannot_tell_since)
            when excluded.idle_source = '' then w.cannot_tell_since end,
        cannot_tell_told = w.cannot_tell_told and excluded.idle_source in ('', 'none'),
        silent_since = null, disconnected = false, answered_at = null, connected_at = clock_timestamp()
    returning w.workstation_id, w.identity, w.instance, w.session, w.drain, w.reason)
select f.why as refused, coalesce(c.workstation_id, p.workstation_id) as workstation_id, coalesce(c.session, p.session) as session,
    coalesce(p.answered, false) as answered, c.drain,
    case when c.drain then c.reason else '' end as drain_reason,
    coalesce(p.instance = c.instance, false) as same_instance,
    coalesce(p.state = 'dead', false) as was_dead, s.selection,
    r.wanted as presence, coalesce(k.tries > 0, false) as woken, array(select o.name from pcfarm.slot o where o.hostname = a.hostname order by o.name) as slots
from asked a
left join connected c on c.identity = a.identity
left join prior p on p.identity = a.identity
left join refused f on f.position = a.position
left join pcfarm.selection s on s.hostname = a.hostname
left join pcfarm.presence r on r.hostname = a.hostname
left join pcfarm.wake k on k.workstation_id = c.workstation_id
order by a.position
