-- What happened, and what is forgotten in time.

-- Every change that somebody may ask about later. Written by triggers, so that it does not matter who makes the change, or
-- how.
create table pcfarm.event (
    event_id       bigint generated always as identity,
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
    details        jsonb not null default '{}',
    primary key (transaction_id, event_id)
);
create index event_by_job on pcfarm.event (job_id, event_id) where job_id is not null;
create index event_by_workstation on pcfarm.event (workstation_id, event_id) where workstation_id is not null;
create index event_by_time on pcfarm.event (happened_at);

create function pcfarm.note_job()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- As a default it would be asked for each event.
    maker name := pcfarm.acting_user();
begin
    if tg_op = 'INSERT' then
        insert into pcfarm.event (who, what, job_id, subject, details)
        select maker, w.what, new.job_id, new.name, case w.what when 'job created' then jsonb_strip_nulls(jsonb_build_object(
            'job_type', new.job_type, 'owner', new.owner, 'priority', new.priority, 'deadline', new.deadline)) else '{}' end
        from unnest(case new.state when 'open' then array['job created', 'job opened'] else array['job created'] end) w(what);
    else
        insert into pcfarm.event (who, what, job_id, subject)
        values (maker, 'job ' || case new.state when 'open' then
                case old.state when 'loading' then 'opened' when 'held' then 'released' else 'retried' end
                else new.state end,
            new.job_id, new.name);
    end if;
    return null;
end $$;
create trigger note_creation after insert on pcfarm.job for each row execute function pcfarm.note_job();
create trigger note_state after update on pcfarm.job for each row
    when (old.state is distinct from new.state) execute function pcfarm.note_job();

create function pcfarm.note_workstation()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    its pcfarm.workstation;
begin
    if tg_op = 'DELETE' then
        its := old;
    else
        its := new;
    end if;
    insert into pcfarm.event (what, workstation_id, subject, details)
    values ('workstation ' || case
            when tg_op = 'INSERT' then 'registered'
            when tg_op = 'DELETE' then 'forgotten'
            when new.quarantine is not null and old.quarantine is null then 'quarantined'
            when old.quarantine is not null and new.quarantine is null then 'released'
            when new.drain and not old.drain then 'drained'
            when old.drain and not new.drain then 'drain undone'
            when new.note <> old.note then 'note'
            when old.state = 'dead' and new.state <> 'offline' then 'back'
            when old.state = 'offline' and new.state <> 'dead' then 'online'
            when new.state is distinct from old.state then case when new.state = 'offline' and new.asleep then 'asleep' else new.state end
            -- Once more, for another reason or until another time.
            else 'drained' end,
        its.workstation_id, its.hostname, jsonb_strip_nulls(jsonb_build_object('reason', nullif(its.reason, ''),
            'why', nullif(its.drained_why, ''), 'deadline', its.drain_deadline, 'note', nullif(its.note, ''),
            -- With its evidence, which is told once.
            'quarantine', case when tg_op <> 'UPDATE' or old.quarantine is null then its.quarantine end)));
    return null;
end $$;
create trigger note_registration after insert on pcfarm.workstation for each row execute function pcfarm.note_workstation();
create trigger note_state after update on pcfarm.workstation for each row
    when (old.state is distinct from new.state or old.drain is distinct from new.drain or old.note <> new.note
        or new.drain and (old.drained_why is distinct from new.drained_why or old.drain_deadline is distinct from new.drain_deadline))
    execute function pcfarm.note_workstation();
create trigger note_end after delete on pcfarm.workstation for each row execute function pcfarm.note_workstation();

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
create trigger note after insert or update or delete on pcfarm.job_type_resource for each row
    execute function pcfarm.note_setting('resources of a job type', 'job_type');
create trigger note after insert or update or delete on pcfarm.profile for each row
    execute function pcfarm.note_setting('profile entry', 'job_type');
create trigger note after insert or update or delete on pcfarm.selection for each row
    execute function pcfarm.note_setting('selection', 'hostname');
create trigger note after insert or update or delete on pcfarm.presence for each row
    execute function pcfarm.note_setting('presence', 'hostname');
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
    job   bigint;
    ended timestamptz;
    part  record;
    gone  bigint;
begin
    if not pcfarm.clock_is_proven() then
        return 0;
    end if;
    select f.job_id into job from pcfarm.forgotten f order by f.job_id limit 1 for update skip locked;
    if not found then
        -- Of each job type the first, by its index.
        select o.job_id, o.ended_at into job, ended
        from pcfarm.job_type t
        cross join lateral (
            select j.job_id, j.ended_at from pcfarm.job j
            where j.job_type = t.name and j.ended_at < statement_timestamp() - t.retention
                -- What it did is in pcfarm.statistic.
                and not exists (select from pcfarm.progress p where p.job_id = j.job_id and not p.counted)
                -- Who waits for it must know how it ended.
                and not exists (
                    select from pcfarm.job_after a
                    join pcfarm.job w on w.job_id = a.job_id and w.ended_at is null where a.after_job = j.job_id)
            order by j.ended_at
            limit 1) o
        where t.retention is not null
        order by o.ended_at
        limit 1;
        -- Another server may have come first, or it may have been tried anew meanwhile.
        perform from pcfarm.job j where j.job_id = job and j.ended_at = ended for update skip locked;
        if not found then
            return 0;
        end if;
        insert into pcfarm.forgotten values (job);
        delete from pcfarm.failed_attempt f where f.job_id = job;
        delete from pcfarm.job_after a where a.job_id = job or a.after_job = job;
        delete from pcfarm.job_info i where i.job_id = job;
        delete from pcfarm.job_file f where f.job_id = job;
        delete from pcfarm.job j where j.job_id = job;
        insert into pcfarm.event (what, job_id) values ('job forgotten', job);
        return 1;
    end if;
    for part in
        -- What is folded meanwhile comes again.
        -- Files behind checkouts: what is sent under one has come, or comes too late, when that is gone.
        select * from (values ('progress', ''), ('result', ''), ('checkout', 'order by o.lane_id desc, o.from_order desc'), ('output', ''),
            ('problem_file', ''),
            ('requeued', ''), ('problem', ''), ('lane', '')) as p(name, in_order)
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

-- A standing job does not end; what has ended in it is removed by the same retention. Of a lane that has been handed out to
-- its end, its newest checkouts go first and the problems that they held with them, so that what is left begins where a lane
-- begins; of one whose problems waited for their time, the last problems. Looks at some lanes behind a place and returns the
-- place to go on from (nulls: from the start) and how many problems are gone.
create function pcfarm.forget_old_problems(
    after_job bigint default 0, after_lane bigint default 0, batch integer default 10000,
    out to_job bigint, out to_lane bigint, out gone bigint)
language plpgsql set enable_seqscan = off set jit = off as $$
declare
    old      record;
    newest   pcfarm.checkout;
    -- Start of the checkout that went last: those behind it are dead entries of the index, not to be read again.
    ends     bigint;
    starts   bigint;
    problems bigint[];
    ended    bigint;
    -- Problems of the lane that are gone.
    taken    bigint;
    is_empty boolean;
begin
    gone := 0;
    if not pcfarm.clock_is_proven() then
        return;
    end if;
    for old in
        select l.job_id, l.lane_id, l.job_type, l.kind,
            -- Whoever repeats a delivery is told for an hour that it was accepted.
            clock_timestamp() - greatest(t.retention, interval '1 hour') as before
        from pcfarm.job j
        join pcfarm.job_type t on t.name = j.job_type and t.retention is not null
        cross join lateral (
            select l.job_id, l.lane_id, l.job_type, l.kind from pcfarm.lane l
            where l.job_id = j.job_id and l.exhausted and (l.job_id, l.lane_id) > (after_job, after_lane)
                and l.loaded_at < clock_timestamp() - greatest(t.retention, interval '1 hour')
            order by l.lane_id limit 100) l
        where j.ended_at is null and j.standing and j.job_id >= after_job
        order by l.job_id, l.lane_id
        limit 100
    loop
        if gone >= batch then
            return;
        end if;
        to_job := old.job_id;
        to_lane := old.lane_id;
        -- As whoever hands out has it: nobody cancels or retries meanwhile.
        perform from pcfarm.job j where j.job_id = old.job_id and j.ended_at is null for share skip locked;
        continue when not found;
        -- Of several servers one is at it.
        perform from pcfarm.lane l where l.job_id = old.job_id and l.lane_id = old.lane_id for update skip locked;
        continue when not found;
        ends := 9223372036854775807;
        taken := 0;
        is_empty := false;
        loop
            newest := null;
            if old.kind = 'later' then
                select min(p.batch_order), array_agg(p.problem_id) into starts, problems
                from (select p.batch_order, p.problem_id from pcfarm.problem p where p.job_id = old.job_id and p.lane_id = old.lane_id
                        and p.batch_order < ends
                    order by p.batch_order desc, p.problem_id desc limit 1000) p;
                -- Whole convoys, so that what is left ends before one.
                select array_agg(p.problem_id) into problems from pcfarm.problem p
                where p.job_id = old.job_id and p.lane_id = old.lane_id and p.batch_order >= starts and p.batch_order < ends;
            else
                select c.* into newest from pcfarm.checkout c
                where c.job_id = old.job_id and c.lane_id = old.lane_id and c.from_order < ends
                order by c.from_order desc limit 1;
                exit when newest.ended_at >= old.before or newest.checkout_id is not null and newest.ended_at is null;
                select newest.from_order, array_agg(p.problem_id) into starts, problems
                from pcfarm.problem p
                where p.job_id = old.job_id and p.lane_id = old.lane_id and p.batch_order >= newest.from_order
                    and p.batch_order < newest.to_order;
            end if;
            is_empty := problems is null;
            exit when is_empty;
            select count(*) into ended
            from unnest(problems) as u(problem_id)
            cross join lateral (
                select r.accepted_at, r.checkout_id from pcfarm.result r
                where r.job_id = old.job_id and r.problem_id = u.problem_id offset 0) r
            left join lateral (
                select coalesce(c.ended_at, 'infinity') as ended_at from pcfarm.checkout c
                where c.checkout_id = r.checkout_id offset 0) c on true
            where r.accepted_at < old.before and coalesce(c.ended_at, '-infinity') < old.before;
            exit when ended < cardinality(problems);
            perform pcfarm.forget_problems(old.job_id, old.lane_id, old.job_type, starts, ends, problems);
            ends := starts;
            if newest.checkout_id is not null then
                delete from pcfarm.checkout c where c.checkout_id = newest.checkout_id;
            end if;
            taken := taken + ended;
            exit when gone + taken >= batch;
        end loop;
        -- Once for all of them: each version of this row would be stepped over by the next.
        if taken > 0 then
            update pcfarm.lane l set problems = l.problems - taken,
                next_insertion = case when old.kind = 'later' then l.next_insertion else ends end
            where l.job_id = old.job_id and l.lane_id = old.lane_id;
        end if;
        if is_empty then
            delete from pcfarm.lane l where l.job_id = old.job_id and l.lane_id = old.lane_id and l.problems = 0;
        end if;
        gone := gone + taken;
    end loop;
    -- Not cut short: from the start again.
    if gone < batch and (to_job is null or not exists (
        select from pcfarm.job j join pcfarm.lane l on l.job_id = j.job_id and l.exhausted
        where j.ended_at is null and j.standing and (l.job_id, l.lane_id) > (to_job, to_lane)))
    then
        to_job := null;
        to_lane := null;
    end if;
end $$;

-- Removes all problems of one lane between two batch orders, with their results and all other rows about them. All of them have
-- ended. The caller counts them in the lane's row. Checkouts in which some of them came back hold so many less, and are removed
-- when they hold nothing, unless they are their lane's pointer.
create function pcfarm.forget_problems(
    job bigint, lane bigint, type text, from_order bigint, to_order bigint, problems bigint[])
returns void language plpgsql set enable_seqscan = off set enable_nestloop = off set jit = off as $$
declare
    fewer bigint[];
begin
    with result as (
        delete from pcfarm.result r where r.ctid = any (array(
            select r.ctid from unnest(forget_problems.problems) as u(problem_id)
            cross join lateral (
                select r.ctid from pcfarm.result r where r.job_id = job and r.problem_id = u.problem_id offset 0) r))
        returning r.problem_id, r.checkout_id, r.failed),
    came_back as (
        delete from pcfarm.requeued q where q.ctid = any (array(
            select q.ctid from unnest(forget_problems.problems) as u(problem_id)
            cross join lateral (
                select q.ctid from pcfarm.requeued q where q.job_id = job and q.problem_id = u.problem_id offset 0) q))
        returning q.lane_id, q.batch_order, q.problem_id),
    held as (
        select c.checkout_id, count(*)::integer as problems, count(r.problem_id)::integer as delivered
        from came_back b
        join lateral (
            select c.checkout_id, c.to_order, c.given_back from pcfarm.checkout c
            where c.job_id = job and c.lane_id = b.lane_id and c.from_order <= b.batch_order
            order by c.from_order desc limit 1) c on b.batch_order < c.to_order
                -- Its counts leave out problems that were given back.
                and (c.given_back is null or b.problem_id <> all (c.given_back))
        left join result r on r.problem_id = b.problem_id and r.checkout_id = c.checkout_id
        group by c.checkout_id),
    less as (
        update pcfarm.checkout c set problems = c.problems - h.problems, delivered = c.delivered - h.delivered
        -- Named twice, so that only these checkouts are read.
        from held h where c.checkout_id = h.checkout_id and c.checkout_id = any (array(select i.checkout_id from held i))
        returning c.checkout_id),
    noted as (
        insert into pcfarm.progress (job_id, job_type, done, failed, counted)
        select job, type, -count(*) filter (where not r.failed), -count(*) filter (where r.failed), true from result r)
    select array_agg(l.checkout_id) into fewer from less l;
    delete from pcfarm.checkout c
    where c.checkout_id = any (fewer) and c.problems = 0 and (
        select n.checkout_id from pcfarm.checkout n
        where n.job_id = c.job_id and n.lane_id = c.lane_id and n.from_order > c.from_order limit 1) is not null;
    delete from pcfarm.problem p
    where p.job_id = job and p.lane_id = lane and p.batch_order >= forget_problems.from_order
        and p.batch_order < forget_problems.to_order;
    delete from pcfarm.output o where o.ctid = any (array(
        select o.ctid from unnest(forget_problems.problems) as u(problem_id)
        cross join lateral (
            select o.ctid from pcfarm.output o where o.job_id = job and o.problem_id = u.problem_id offset 0) o));
    delete from pcfarm.problem_file f where f.ctid = any (array(
        select f.ctid from unnest(forget_problems.problems) as u(problem_id)
        cross join lateral (
            select f.ctid from pcfarm.problem_file f where f.job_id = job and f.problem_id = u.problem_id offset 0) f));
end $$;
