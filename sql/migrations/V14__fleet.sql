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
        || case when deadline is not null then '; what is not finished at '
            || to_char(deadline at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC is given back' else '' end
$$;

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

revoke all on routine pcfarm.drainer(), pcfarm.drain_reason(text, text, timestamptz),
    pcfarm.forget_workstations(bigint[], boolean) from public;
do $$
begin
    if exists (select from pg_roles where rolname = 'pcfarm_loader') then
        grant select on pcfarm.forgotten_workstation to pcfarm_loader;
    end if;
end $$;
