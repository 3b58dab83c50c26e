-- What happened, and what is forgotten in time.

-- Every change that somebody may ask about later. Written by triggers, so that it does not matter who makes the change, or
-- how.
create table pcfarm.event (
    event_id       bigint generated always as identity primary key,
    -- Events are read in the order of their transactions: ids may be committed out of order.
    transaction_id xid8 not null default pg_current_xact_id(),
    happened_at    timestamptz not null default clock_timestamp(),
    -- The database role, or the user whom a server acted for, and what its program says it is.
    who            name not null default pcfarm.acting_user(),
    program        text not null default current_setting('application_name', true),
    what           text not null,
    job_id         bigint,
    workstation_id bigint,
    subject        text,
    details        jsonb not null default '{}'
);
create index event_in_order on pcfarm.event (transaction_id, event_id);
create index event_by_job on pcfarm.event (job_id, event_id) where job_id is not null;
create index event_by_workstation on pcfarm.event (workstation_id, event_id) where workstation_id is not null;
create index event_by_time on pcfarm.event (happened_at);

create function pcfarm.note_job()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.event (what, job_id, subject, details)
    values (case when tg_op = 'INSERT' then 'job created' else 'job ' || case new.state when 'open' then
                case old.state when 'loading' then 'opened' when 'held' then 'released' else 'retried' end
                else new.state end end,
        new.job_id, new.name,
        case when tg_op = 'INSERT' then jsonb_strip_nulls(jsonb_build_object('job_type', new.job_type, 'owner', new.owner,
            'priority', new.priority, 'deadline', new.deadline)) else '{}' end);
    return null;
end $$;
create trigger note_creation after insert on pcfarm.job for each row execute function pcfarm.note_job();
create trigger note_state after update on pcfarm.job for each row
    when (old.state is distinct from new.state) execute function pcfarm.note_job();

create function pcfarm.note_workstation()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.event (what, workstation_id, subject, details)
    values ('workstation ' || case
            when tg_op = 'INSERT' then 'registered'
            when new.drain and not old.drain then 'drained'
            when old.drain and not new.drain then 'drain undone'
            when old.state = 'dead' then 'back'
            else new.state end,
        new.workstation_id, new.hostname, jsonb_strip_nulls(jsonb_build_object('reason', nullif(new.reason, ''))));
    return null;
end $$;
create trigger note_registration after insert on pcfarm.workstation for each row execute function pcfarm.note_workstation();
create trigger note_state after update on pcfarm.workstation for each row
    when (old.state is distinct from new.state or old.drain is distinct from new.drain)
    execute function pcfarm.note_workstation();

-- What an administrator has set: what changed, and how. The arguments are what it is called and the column that names it.
create function pcfarm.note_setting()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    before  jsonb := case when tg_op = 'INSERT' then '{}' else to_jsonb(old) end;
    after   jsonb := case when tg_op = 'DELETE' then '{}' else to_jsonb(new) end;
    changes jsonb;
begin
    select jsonb_object_agg(k, jsonb_build_array(before -> k, after -> k)) into changes
    from (select jsonb_object_keys(before || after) as k) c
    where before -> k is distinct from after -> k and coalesce(before -> k, 'null') <> coalesce(after -> k, 'null');
    if changes is not null then
        insert into pcfarm.event (what, subject, details)
        values (tg_argv[0] || case tg_op when 'INSERT' then ' made' when 'DELETE' then ' removed' else ' changed' end,
            coalesce(after ->> tg_argv[1], before ->> tg_argv[1]), changes);
    end if;
    return null;
end $$;
create trigger note after update on pcfarm.farm for each row execute function pcfarm.note_setting('farm', 'singleton');
create trigger note after insert or update or delete on pcfarm.job_type for each row
    execute function pcfarm.note_setting('job type', 'name');
create trigger note after insert or update or delete on pcfarm.farm_user for each row
    execute function pcfarm.note_setting('user', 'name');
create trigger note after insert or update or delete on pcfarm.user_job_type for each row
    execute function pcfarm.note_setting('limits of a job type', 'user_name');
create trigger note after insert or update or delete on pcfarm.resource for each row
    execute function pcfarm.note_setting('resource', 'name');
create trigger note after insert or update or delete on pcfarm.profile for each row
    execute function pcfarm.note_setting('profile entry', 'job_type');
create trigger note after insert or update or delete on pcfarm.selection for each row
    execute function pcfarm.note_setting('selection', 'hostname');
create trigger note after insert or delete on pcfarm.slot for each row
    execute function pcfarm.note_setting('slot', 'hostname');
create trigger note after insert or update or delete on pcfarm.job_after for each row
    execute function pcfarm.note_setting('order of jobs', 'job_id');

create function pcfarm.note_parking()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.event (what, job_id, details)
    values (case when new.parked then 'load parked' else 'load unparked' end, new.job_id,
        jsonb_build_object('lane_id', new.lane_id, 'problems', new.problems));
    return null;
end $$;
create trigger note_parking after update on pcfarm.lane for each row
    when (old.parked is distinct from new.parked) execute function pcfarm.note_parking();

-- Forgetting ------------------------------------------------------------------------------------------------------------

-- Jobs whose rows are being removed.
create table pcfarm.forgotten (job_id bigint primary key);

-- Removes the job that ended first of those whose time is over, and then its rows, so many at a time: results before the
-- checkouts that they came under, the newest of those first, and problems last. So what is left always hangs together.
-- Returns how many rows are gone.
create function pcfarm.forget_old_job(batch integer default 10000)
returns bigint language plpgsql set enable_seqscan = off as $$
declare
    job  bigint;
    part record;
    gone bigint;
begin
    select f.job_id into job from pcfarm.forgotten f order by f.job_id limit 1 for update skip locked;
    if not found then
        select j.job_id into job from pcfarm.job j
        join pcfarm.job_type t on t.name = j.job_type
        where j.ended_at < clock_timestamp() - t.retention
            -- Who waits for it must know how it ended.
            and not exists (
                select from pcfarm.job_after a
                join pcfarm.job w on w.job_id = a.job_id and w.ended_at is null where a.after_job = j.job_id)
        order by j.ended_at
        limit 1
        for update of j skip locked;
        if not found then
            return 0;
        end if;
        insert into pcfarm.forgotten values (job);
        delete from pcfarm.progress p where p.job_id = job;
        delete from pcfarm.failed_attempt f where f.job_id = job;
        delete from pcfarm.job_after a where a.job_id = job or a.after_job = job;
        delete from pcfarm.job_info i where i.job_id = job;
        delete from pcfarm.job j where j.job_id = job;
        insert into pcfarm.event (what, job_id) values ('job forgotten', job);
        return 1;
    end if;
    for part in
        select * from (values ('result', ''), ('checkout', 'order by o.lane_id desc, o.from_order desc'), ('requeued', ''),
            ('problem', ''), ('lane', '')) as p(name, in_order)
    loop
        execute format('delete from pcfarm.%I r where r.ctid = any (array(
            select o.ctid from pcfarm.%1$I o where o.job_id = $1 %s limit $2))', part.name, part.in_order) using job, batch;
        get diagnostics gone = row_count;
        if gone > 0 then
            return gone;
        end if;
    end loop;
    delete from pcfarm.forgotten f where f.job_id = job;
    return 1;
end $$;
