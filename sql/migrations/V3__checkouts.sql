-- Accepting results and closing checkouts: the transitions that fence.
--
-- Each is one call, so no lock is ever held while a server thinks or is frozen. Lock order: job, lanes,
-- checkouts in ascending id, results by key, the user's tables. A statement that has waited for a lock sees an
-- older snapshot than the row it got, so what is unfinished is always read by the statement after it.

-- Problems that checkouts hold: rows of a load lane or of a retry lane, without those that were given back meanwhile. Each
-- checkout's range is read by itself and in order, which leaves the planner no choice but the index that it is a range
-- of: with old statistics it would read the whole table, or a whole job's retries.
--
-- A checkout with problems that were given back sorts them together with its range: to compare each problem with each of them would
-- cost their product.
create view pcfarm.held_problem as
select c.checkout_id, c.job_id, p.problem_id, c.lane_id as home_lane, p.batch_order as home_order,
    p.batch_order, 0 as attempts, 0 as losses, false as alone, false as came_back
from pcfarm.checkout c
cross join lateral (
    select p.batch_order, p.problem_id from pcfarm.problem p
    where p.job_id = c.job_id and p.lane_id = c.lane_id and p.batch_order >= c.from_order and p.batch_order < c.to_order
    order by p.batch_order, p.problem_id
    offset 0) p
where c.given_back is null
union all
select c.checkout_id, c.job_id, r.problem_id, r.home_lane, r.home_order,
    r.batch_order, r.attempts, r.losses, r.alone, true
from pcfarm.checkout c
cross join lateral (
    select r.batch_order, r.problem_id, r.home_lane, r.home_order, r.attempts, r.losses, r.alone from pcfarm.requeued r
    where r.job_id = c.job_id and r.lane_id = c.lane_id and r.batch_order >= c.from_order and r.batch_order < c.to_order
    order by r.batch_order, r.problem_id
    offset 0) r
where c.given_back is null
union all
select c.checkout_id, c.job_id, k.problem_id, c.lane_id, k.batch_order, k.batch_order, 0, 0, false, false
from pcfarm.checkout c
cross join lateral (
    select distinct on (u.problem_id) u.*
    from (
        (select p.batch_order, p.problem_id, false as is_given_back from pcfarm.problem p
        where p.job_id = c.job_id and p.lane_id = c.lane_id and p.batch_order >= c.from_order and p.batch_order < c.to_order
        order by p.batch_order, p.problem_id
        offset 0)
        union all
        select null, g.problem_id, true from unnest(c.given_back) g(problem_id)) u
    order by u.problem_id, u.is_given_back desc) k
where c.given_back is not null and not k.is_given_back
union all
select c.checkout_id, c.job_id, k.problem_id, k.home_lane, k.home_order, k.batch_order, k.attempts, k.losses, k.alone, true
from pcfarm.checkout c
cross join lateral (
    select distinct on (u.problem_id) u.*
    from (
        (select r.batch_order, r.problem_id, r.home_lane, r.home_order, r.attempts, r.losses, r.alone, false as is_given_back
        from pcfarm.requeued r
        where r.job_id = c.job_id and r.lane_id = c.lane_id and r.batch_order >= c.from_order and r.batch_order < c.to_order
        order by r.batch_order, r.problem_id
        offset 0)
        union all
        select null, g.problem_id, null, null, null, null, null, true from unnest(c.given_back) g(problem_id)) u
    order by u.problem_id, u.is_given_back desc) k
where c.given_back is not null and not k.is_given_back;

-- Write-back --------------------------------------------------------------------------------------------------

create type pcfarm.write_back_failure as (place bigint, message text);

-- Runs a job type's write-back. When it fails it is split until the failing result is alone, which is named by its
-- place; what is not the data's fault (deadlock, disk full, cancelled, shutting down) is the transaction's and goes up.
create function pcfarm.write_back(job_type text, places bigint[], keys text[], solutions jsonb[])
returns setof pcfarm.write_back_failure language plpgsql as $$
declare
    members integer := cardinality(places);
    half    integer := members / 2;
    failure text;
begin
    if coalesce(members, 0) = 0 then
        return;
    end if;
    begin
        execute format('select pcfarm_write_back.%I($1, $2)', job_type) using keys, solutions;
        return;
    -- Others are all but a cancellation, which goes up, and a failed ASSERT, which is the statement's own.
    exception when others or assert_failure then
        if left(sqlstate, 2) in ('08', '40', '53', '54', '57', '58', 'XX') or sqlstate = '55P03' then
            raise;
        end if;
        get stacked diagnostics failure = message_text;
    end;
    if members = 1 then
        return next (places[1], 'write-back: ' || failure)::pcfarm.write_back_failure;
    else
        return query select * from pcfarm.write_back(job_type, places[:half], keys[:half], solutions[:half]);
        return query select * from pcfarm.write_back(job_type, places[half + 1:], keys[half + 1:], solutions[half + 1:]);
    end if;
end $$;

-- More than solutions ---------------------------------------------------------------------------------------------

-- Enqueues what stored problems bring, patches their jobs' infos and writes their solutions back, jobs in ascending order:
-- of each problem all of it or nothing. Returns what could not be done, by the places of those problems.
--
-- An info is written once, however many patch it: each version of its row would be stepped over by the next.
create function pcfarm.bring_more(
    type text, writes_back boolean, jobs bigint[], checkout_ids bigint[], positions integer[], problem_ids bigint[],
    keys text[], solutions text[], more jsonb)
returns setof pcfarm.write_back_failure language plpgsql as $$
declare
    -- Jobs whose infos are patched, each of these as it is patched so far, and those that had none before.
    patched_jobs bigint[];
    infos        jsonb[] := '{}';
    new_infos    bigint[];
    patched      jsonb;
    one          record;
    failure      text;
begin
    -- Before what is enqueued locks anything, and in order, so that no two who patch and enqueue wait for each other.
    select coalesce(array_agg(distinct jobs[s.position] order by jobs[s.position]), '{}') into patched_jobs
    from unnest(positions, problem_ids) as s(position, problem_id)
    join jsonb_array_elements(more) as m(value)
        on (m.value ->> 'problem_id')::bigint = s.problem_id
        and (m.value ->> 'checkout_id')::bigint = checkout_ids[s.position]
    where m.value ? 'info';
    with made as (
        insert into pcfarm.job_info (job_id, info) select n.job, '{}' from unnest(patched_jobs) n(job) order by n.job
        on conflict do nothing returning job_id)
    select coalesce(array_agg(m.job_id), '{}') into new_infos from made m;
    for one in
        select i.job_id, i.info from pcfarm.job_info i where i.job_id = any (patched_jobs) order by i.job_id for update
    loop
        infos[array_position(patched_jobs, one.job_id)] := one.info;
    end loop;

    for one in
        select s.n as place, jobs[s.position] as job, m.value as brought,
            case when m.value ? 'info' then array_position(patched_jobs, jobs[s.position]) end as patches
        from unnest(positions, problem_ids) with ordinality as s(position, problem_id, n)
        join jsonb_array_elements(more) as m(value)
            on (m.value ->> 'problem_id')::bigint = s.problem_id
            and (m.value ->> 'checkout_id')::bigint = checkout_ids[s.position]
        order by 2, 1
    loop
        failure := null;
        begin
            if one.brought ? 'enqueue' then
                perform pcfarm.enqueue(one.job, one.brought -> 'enqueue');
            end if;
            if one.patches is not null then
                patched := pcfarm.patched_info(one.job, infos[one.patches], one.brought -> 'info');
            end if;
            if writes_back then
                select f.message into failure
                from pcfarm.write_back(type, array[one.place], keys[one.place:one.place], solutions[one.place:one.place]::jsonb[]) f;
                if found then
                    raise exception using errcode = 'PCFWB', message = failure;
                end if;
            end if;
            -- The last step, as nothing takes it back.
            if one.patches is not null then
                infos[one.patches] := patched;
            end if;
        exception
            when lock_not_available then
                raise;
            when sqlstate 'PCFWB' then
                failure := sqlerrm;
            when data_exception or integrity_constraint_violation or program_limit_exceeded or configuration_limit_exceeded
                or undefined_object or object_not_in_prerequisite_state then
                failure := 'what it brings cannot be stored: ' || sqlerrm;
        end;
        if failure is not null then
            return next (one.place, failure)::pcfarm.write_back_failure;
        end if;
    end loop;

    update pcfarm.job_info i set info = p.info, changed_at = clock_timestamp()
    from unnest(patched_jobs, infos) p(job_id, info)
    -- Named twice: after a write-back, a plan that joins by merging would read all infos.
    where i.job_id = any (patched_jobs) and i.job_id = p.job_id and i.info <> p.info;
    -- Rows made above, of which no patch could be stored.
    delete from pcfarm.job_info i where i.job_id = any (new_infos) and i.info = '{}';
end $$;

-- Accept ------------------------------------------------------------------------------------------------------

create type pcfarm.verdict as (
    checkout_id bigint,
    -- accepted, already_accepted, revoked or unknown
    verdict     text,
    reason      text,
    accepted    integer,
    refused     integer,
    -- The checkout was closed here: all its problems have results.
    closed      boolean
);

-- Problems that were given back of these checkouts, each with its checkout's position. In PL/pgSQL, so that callers look them up in one
-- hash table instead of reading a checkout's array for each problem.
create function pcfarm.given_back_of(checkout_ids bigint[])
returns table ("position" integer, problem_id bigint) language plpgsql stable rows 1000 as $$
begin
    return query
    select t.n::integer, g.problem_id
    from unnest(checkout_ids) with ordinality t(checkout_id, n)
    join pcfarm.checkout c on c.checkout_id = t.checkout_id and c.checkout_id = any (checkout_ids)
    cross join unnest(c.given_back) g(problem_id);
end $$;

-- Stores results under live checkouts, all of one job type. The caller has checked that each problem is of its
-- checkout, which never changes; that the checkout is live is decided here, under its lock.
--
-- Per checkout, in ascending id: its token, whether it is to be closed if all its problems have results now, and how many
-- solutions of it there are. Per solution, in ascending problem id: the position of its checkout in checkout_ids and
-- attempts used before this one, which may be left out where none has been used; where there is a write-back, the
-- problem's key and where its row is, too. Per failure: the same, and a message.
--
-- Solutions come as text and are parsed one at a time, row by row: an array of jsonb is parsed whole, and the memory that
-- takes is asked of the system anew with each call, which cost more than the parsing.
--
-- What some of the solved problems bring beside their solutions is a JSON array, or null: of each its checkout_id and
-- problem_id, problems that it enqueues in its job, and a patch for the job's info. It has its effect if the solution is
-- stored, in the same transaction. What cannot be enqueued costs its problem an attempt.
--
-- Solutions are stored by a plain insert, which costs half of one with ON CONFLICT: when one is there already, that fails
-- with a unique violation, and the caller comes again with careful = true, under which what is there counts.
create function pcfarm.accept(
    type text, checkout_ids bigint[], tokens bigint[], closing boolean[], solved integer[],
    positions integer[], problem_ids bigint[], attempts integer[], solutions text[],
    keys text[], home_lanes bigint[], home_orders bigint[],
    failed_positions integer[], failed_ids bigint[], failed_attempts integer[],
    failed_home_lanes bigint[], failed_home_orders bigint[], messages text[], careful boolean, more jsonb default null, busy double precision[] default null)
returns setof pcfarm.verdict language plpgsql as $$
declare
    checkouts integer := cardinality(checkout_ids);
    -- Per checkout.
    live      boolean[];
    jobs      bigint[];
    -- Of all, if it is one: looking it up costs time for every result.
    job       bigint;
    offered   integer[] := solved;
    failed    integer[] := array_fill(0, array[checkouts]); -- have a result, which says so
    waiting   integer[] := array_fill(0, array[checkouts]); -- may be tried again
    job_type  pcfarm.job_type;
    moment    timestamptz;
    failures  pcfarm.write_back_failure[] := '{}';
    -- Places of those that bring nothing more.
    alike     bigint[];
    -- Of live ones.
    closed    boolean[];
    -- Some problems of some checkouts were given back.
    is_cut    boolean;
    -- Settings that a pooler kept from the startup packet, so that RESET ALL loses them.
    settings  constant text := current_setting('pcfarm.session', true);
begin
    if more is not null then
        -- Jobs come before checkouts: whoever cancels one has it locked when it closes those.
        perform from pcfarm.job j
        where j.job_id = any (array(select c.job_id from pcfarm.checkout c where c.checkout_id = any (checkout_ids)))
        order by j.job_id for share;
    end if;
    if checkouts > 100 then
        -- So many are worth a plan, where the caller's connection makes none for a few.
        perform set_config('plan_cache_mode', 'auto', true);
    end if;
    -- What is read here of a row is of the time when it has been locked; what the statement sees of others may be older.
    select array_agg(coalesce(c.token = t.token and c.ended_at is null and c.job_type = type, false) order by t.n),
        array_agg(c.job_id order by t.n), coalesce(bool_or(c.given_back is not null), false)
    into live, jobs, is_cut
    from unnest(checkout_ids, tokens) with ordinality as t(checkout_id, token, n)
    left join (
        select c.checkout_id, c.token, c.ended_at, c.job_type, c.job_id, c.given_back from pcfarm.checkout c
        where c.checkout_id = any (checkout_ids) order by c.checkout_id for update) c on c.checkout_id = t.checkout_id;
    -- Results of problems that were given back are refused below: the caller may not know yet that they were.
    careful := careful or is_cut;
    select t.* into job_type from pcfarm.job_type t where t.name = type;
    if job_type.write_back is not null
        and (cardinality(keys) <> cardinality(positions) or array_position(keys, null) is not null)
    then
        raise exception 'job type % has a write-back now', type using errcode = 'serialization_failure';
    end if;
    if cardinality(attempts) = 0 and (careful or job_type.write_back is not null or more is not null or false = any (live)) then
        attempts := array_fill(0, array[cardinality(positions)]);
    end if;
    if cardinality(positions) + cardinality(failed_positions) > 100
        and (careful or cardinality(failed_ids) > 0 or false = any (live))
    then
        -- Now rows are matched with rows, which needs another plan for many.
        perform set_config('plan_cache_mode', 'auto', true);
    end if;

    moment := clock_timestamp();
    if not careful and true = all (live) then
        if jobs[1] = all (jobs) then
            job := jobs[1];
        end if;
        if job is not null and job_type.keep_results and cardinality(attempts) = 0 then
            -- As nearly all are. What is asked of each row else is a twelfth of what it costs to store it.
            insert into pcfarm.result (job_id, problem_id, checkout_id, accepted_at, attempts, failed, solution)
            select job, s.problem_id, checkout_ids[s.position], moment, 1, false, s.solution::jsonb
            from (
                select unnest(positions) as position, unnest(problem_ids) as problem_id, unnest(solutions) as solution) s;
        else
            insert into pcfarm.result (job_id, problem_id, checkout_id, accepted_at, attempts, failed, solution)
            select coalesce(job, jobs[s.position]), s.problem_id, checkout_ids[s.position], moment, coalesce(s.attempts, 0) + 1,
                false, case when job_type.keep_results then s.solution::jsonb end
            from (
                select unnest(positions) as position, unnest(problem_ids) as problem_id, unnest(accept.attempts) as attempts,
                    unnest(solutions) as solution) s;
        end if;
    else
        -- From here on only those count that are stored by this call.
        with offered as materialized (
            select distinct on (s.position, s.problem_id) s.*
            from unnest(positions, problem_ids, attempts, solutions) with ordinality
                as s(position, problem_id, attempts, solution, n)
            where live[s.position] and not (is_cut and (s.position, s.problem_id) in (
                select g.position, g.problem_id from pcfarm.given_back_of(checkout_ids) g))
            order by s.position, s.problem_id, s.n),
        inserted as (
            insert into pcfarm.result as r (job_id, problem_id, checkout_id, attempts, failed, solution)
            select jobs[o.position], o.problem_id, checkout_ids[o.position], o.attempts + 1, false,
                case when job_type.keep_results then o.solution::jsonb end
            from offered o
            order by jobs[o.position], o.problem_id
            on conflict do nothing
            returning r.problem_id, r.checkout_id)
        select coalesce(array_agg(o.position order by o.n), '{}'), coalesce(array_agg(o.problem_id order by o.n), '{}'),
            coalesce(array_agg(o.attempts order by o.n), '{}'), coalesce(array_agg(o.solution order by o.n), '{}'),
            coalesce(array_agg(keys[o.n] order by o.n), '{}'), coalesce(array_agg(home_lanes[o.n] order by o.n), '{}'),
            coalesce(array_agg(home_orders[o.n] order by o.n), '{}')
        into positions, problem_ids, attempts, solutions, keys, home_lanes, home_orders
        from offered o
        join inserted i on i.problem_id = o.problem_id and i.checkout_id = checkout_ids[o.position];
        select array_agg(coalesce(k.solved, 0) order by n) into solved
        from generate_series(1, checkouts) n
        left join (select p.position, count(*)::integer as solved from unnest(positions) as p(position) group by 1) k
            on k.position = n;
    end if;

    if cardinality(failed_ids) > 0 then
        with failure as materialized (
            select distinct on (f.position, f.problem_id) f.*, f.attempts + 1 >= job_type.max_attempts as ends
            from unnest(failed_positions, failed_ids, failed_attempts, failed_home_lanes, failed_home_orders, messages)
                with ordinality as f(position, problem_id, attempts, home_lane, home_order, message, n)
            where not (is_cut and (f.position, f.problem_id) in (
                select g.position, g.problem_id from pcfarm.given_back_of(checkout_ids) g))
            order by f.position, f.problem_id, f.n),
        ended as (
            insert into pcfarm.result as r (job_id, problem_id, checkout_id, attempts, failed, message, home_lane,
                home_order)
            select jobs[f.position], f.problem_id, checkout_ids[f.position], f.attempts + 1, true, f.message,
                f.home_lane, f.home_order
            from failure f
            where live[f.position] and f.ends
            order by jobs[f.position], f.problem_id
            on conflict do nothing
            returning r.problem_id, r.checkout_id),
        -- A failure that was not the last attempt waits here until its checkout closes.
        noted as (
            insert into pcfarm.failed_attempt (job_id, checkout_id, problem_id, message)
            select jobs[f.position], checkout_ids[f.position], f.problem_id, f.message
            from failure f
            where live[f.position] and not f.ends
            on conflict do nothing)
        select array_agg(coalesce(k.stored, 0) order by n), array_agg(coalesce(k.noted, 0) order by n),
            array_agg(offered[n] + coalesce(k.came, 0) order by n)
        into failed, waiting, offered
        from generate_series(1, checkouts) n
        left join (
            select f.position, count(*)::integer as came, count(e.problem_id)::integer as stored,
                (count(*) filter (where live[f.position] and not f.ends))::integer as noted
            from failure f
            left join ended e on e.problem_id = f.problem_id and e.checkout_id = checkout_ids[f.position]
            group by 1) k on k.position = n;
    end if;

    if job_type.write_back is not null and cardinality(positions) > 0 then
        -- The caller's plans go by index alone. This statement is not ours, and may read what it likes as it likes.
        perform set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),
            set_config('enable_mergejoin', 'on', true);
    end if;
    if more is not null then
        select coalesce(array_agg(f), '{}') into failures
        from pcfarm.bring_more(type, job_type.write_back is not null, jobs, checkout_ids, positions, problem_ids, keys,
            solutions, more) f;
    end if;
    if job_type.write_back is not null and cardinality(positions) > 0 then
        select array_agg(s.n order by s.n) into alike
        from unnest(positions, problem_ids) with ordinality as s(position, problem_id, n)
        where more is null or not exists (
            select from jsonb_array_elements(more) m
            where (m ->> 'problem_id')::bigint = s.problem_id and (m ->> 'checkout_id')::bigint = checkout_ids[s.position]);
        select failures || coalesce(array_agg(f), '{}') into failures
        from pcfarm.write_back(type, alike, array(select keys[n] from unnest(alike) n),
            array(select solutions[n]::jsonb from unnest(alike) n)) f;
        -- The statement's text may have turned durability off, or anything else.
        reset all;
        if left(settings, 1) = '{' then
            perform set_config(s.key, s.value, false) from jsonb_each_text(settings::jsonb) s;
            perform set_config('pcfarm.session', settings, false);
        end if;
        set local synchronous_commit = on;
    end if;
    if cardinality(failures) > 0 then
        perform pcfarm.take_back_stored(checkout_ids, jobs, job_type.max_attempts, failures, positions, problem_ids,
            attempts, home_lanes, home_orders);
        select array_agg(solved[n] - coalesce(k.taken_back, 0) order by n),
            array_agg(failed[n] + coalesce(k.ended, 0) order by n),
            array_agg(waiting[n] + coalesce(k.taken_back - k.ended, 0) order by n)
        into solved, failed, waiting
        from generate_series(1, checkouts) n
        left join (
            select positions[f.place] as position, count(*)::integer as taken_back,
                (count(*) filter (where attempts[f.place] + 1 >= job_type.max_attempts))::integer as ended
            from unnest(failures) f group by 1) k on k.position = n;
    end if;

    with counted as materialized (
        select n, checkout_ids[n] as checkout_id, jobs[n] as job_id, solved[n] as done, failed[n] as failed,
            solved[n] + failed[n] as delivered, waiting[n] as waiting, closing[n] as closing, coalesce(busy[n], 0) as busy_seconds
        from generate_series(1, checkouts) n
        where live[n]),
    noted as (
        insert into pcfarm.progress (job_id, job_type, done, failed, busy_seconds)
        select k.job_id, type, sum(k.done), sum(k.failed), sum(k.busy_seconds) from counted k where k.delivered > 0 group by 1),
    updated as (
        update pcfarm.checkout c set delivered = c.delivered + k.delivered,
            ended_at = case when k.closing and c.delivered + k.delivered = c.problems then clock_timestamp() end,
            ending = case when k.closing and c.delivered + k.delivered = c.problems then 'accepted' end
        from counted k
        -- Named twice: a plan that joins by merging would read every checkout there has been.
        where c.checkout_id = any (checkout_ids) and c.checkout_id = k.checkout_id
            -- Also if it only has a failed attempt more: who waits for it goes by that (accept_plainly.sql).
            and (k.delivered > 0 or k.closing or k.waiting > 0)
        returning c.job_id, c.checkout_id, c.ended_at),
    -- A failed attempt whose problem was solved after all, by a later delivery.
    forgotten as (
        delete from pcfarm.failed_attempt f
        using updated u
        where u.ended_at is not null and f.job_id = u.job_id and f.checkout_id = u.checkout_id)
    select array_agg(u.ended_at is not null order by k.n) into closed
    from counted k left join updated u on u.checkout_id = k.checkout_id;

    if true = all (live) then
        return query
        select checkout_ids[n], 'accepted', '', solved[n] + failed[n] + waiting[n],
            offered[n] - solved[n] - failed[n] - waiting[n], closed[n]
        from generate_series(1, checkouts) n;
        return;
    end if;
    return query
    select t.checkout_id,
        case when live[t.n] then 'accepted'
             when c.token is distinct from t.token then 'unknown'
             when c.ending = 'revoked' then 'revoked'
             when c.ending is not null then 'already_accepted'
             else 'unknown' end,
        case when live[t.n] then '' else coalesce(c.reason, '') end,
        solved[t.n] + failed[t.n] + waiting[t.n], offered[t.n] - solved[t.n] - failed[t.n] - waiting[t.n],
        live[t.n] and c.ended_at is not null
    from unnest(checkout_ids, tokens) with ordinality as t(checkout_id, token, n)
    left join lateral (
        select c.token, c.ended_at, c.ending, c.reason from pcfarm.checkout c
        where c.checkout_id = t.checkout_id offset 0) c on true
    order by t.n;
end $$;

-- Undoes the results whose write-back failed: that costs those problems an attempt.
create function pcfarm.take_back_stored(
    checkout_ids bigint[], jobs bigint[], max_attempts integer, failures pcfarm.write_back_failure[],
    positions integer[], problem_ids bigint[], attempts integer[], home_lanes bigint[], home_orders bigint[])
returns void language plpgsql as $$
begin
    update pcfarm.result r set failed = true, message = f.message, solution = null,
        home_lane = home_lanes[f.place], home_order = home_orders[f.place]
    from unnest(failures) f
    where take_back_stored.attempts[f.place] + 1 >= max_attempts
        and r.job_id = jobs[positions[f.place]] and r.problem_id = problem_ids[f.place];
    delete from pcfarm.result r
    using unnest(failures) f
    where take_back_stored.attempts[f.place] + 1 < max_attempts
        and r.job_id = jobs[positions[f.place]] and r.problem_id = problem_ids[f.place];
    insert into pcfarm.failed_attempt (job_id, checkout_id, problem_id, message, when_stored)
    select jobs[positions[f.place]], checkout_ids[positions[f.place]], problem_ids[f.place], f.message, true
    from unnest(failures) f
    where take_back_stored.attempts[f.place] + 1 < max_attempts
    on conflict do nothing;
end $$;

-- Close -------------------------------------------------------------------------------------------------------

-- Closes live checkouts and puts what they had not finished into the retry lane.
--
--   finished   the agent is done with them: failed attempts count, the rest comes back at no cost
--   unreceived they never arrived: all comes back at no cost
--   lost       the workstation died or the time ran out: a problem that was sent out to be run alone pays with an
--              attempt, the others count a loss and come back marked to be run alone, in checkouts of an eighth, so
--              that a poisonous one is soon by itself; a convoy of dependent problems stays whole and comes back
--              to be run one by one, so that the first one left is known to be at fault. A checkout that holds one
--              problem but was not marked may have been one of several in the workstation's hands, and any of them
--              to blame: its first loss only marks it
--
-- Checkouts that are not live any more are passed over. Returns those that were closed.
create function pcfarm.close_checkouts(checkout_ids bigint[], how text, why text)
returns table (checkout_id bigint, workstation_id bigint, job_id bigint, requeued integer, failed integer)
language plpgsql set enable_seqscan = off set enable_nestloop = off set jit = off as $$
declare
    closed    bigint[];
    closed_at timestamptz;
begin
    -- Requeueing appends to retry lanes: their locks come before the checkouts', and order the appending.
    perform pcfarm.lock_retry_lanes(array(
        select (c.job_id, l.job_type, l.priority)::pcfarm.retry_lane
        from pcfarm.checkout c
        cross join lateral (
            select l.job_type, l.priority from pcfarm.lane l where l.job_id = c.job_id and l.lane_id = c.lane_id offset 0) l
        where c.checkout_id = any (checkout_ids) and c.ended_at is null and c.delivered < c.problems));
    perform from pcfarm.checkout c where c.checkout_id = any (checkout_ids) and c.ended_at is null
    order by c.checkout_id for update;
    select coalesce(array_agg(c.checkout_id), '{}') into closed
    from pcfarm.checkout c where c.checkout_id = any (checkout_ids) and c.ended_at is null;
    -- One moment for all, after whatever was accepted: a result later than its checkout's end is a bug.
    closed_at := clock_timestamp();

    -- Each step is bound to what it reads by key or is written out once, so that no plan, whatever the statistics, looks
    -- at more than what these checkouts hold.
    return query
    with closing as materialized (
        select c.checkout_id, c.job_id, c.job_type, c.problems, c.workstation_id, r.lane_id as retry_lane, t.max_attempts,
            t.retry_delay, t.retry_delay_limit, j.state = 'cancelled' as cancelled
        from pcfarm.checkout c
        cross join lateral (
            select l.job_type, l.priority from pcfarm.lane l where l.job_id = c.job_id and l.lane_id = c.lane_id offset 0) l
        left join lateral (
            select r.lane_id from pcfarm.lane r
            where r.job_id = c.job_id and r.job_type = l.job_type and r.priority = l.priority and r.kind = 'retry' offset 0) r on true
        cross join lateral (
            select t.max_attempts, t.retry_delay, t.retry_delay_limit from pcfarm.job_type t where t.name = c.job_type offset 0) t
        cross join lateral (select j.state from pcfarm.job j where j.job_id = c.job_id offset 0) j
        where c.checkout_id = any (closed)),
    left_over as materialized (
        select h.*, c.job_type, c.retry_lane, c.retry_delay, c.retry_delay_limit, c.cancelled, hl.grouped,
            -- One that fails wherever it goes has no attempt left.
            case when e.is_its_fault then 1 else c.max_attempts end as max_attempts,
            case when e.is_its_fault then format('failed on %s workstations, the last time: %s', e.workstations, f.message)
                else f.message end as message,
            case when f.message is not null and not f.when_stored then c.workstation_id end as failed_on,
            f.message is null and how = 'lost' as was_lost,
            c.problems = 1 and h.alone as was_alone,
            -- Run one by one: the first that is left was the one being run.
            hl.grouped and h.came_back and h.alone as was_one_by_one
        from closing c
        cross join lateral (
            select h.* from pcfarm.held_problem h
            where h.checkout_id = c.checkout_id and (
                select r.problem_id from pcfarm.result r where r.job_id = h.job_id and r.problem_id = h.problem_id) is null
            offset 0) h
        cross join lateral (
            select l.grouped from pcfarm.lane l where l.job_id = h.job_id and l.lane_id = h.home_lane offset 0) hl
        left join lateral (
            select f.message, f.when_stored from pcfarm.failed_attempt f
            where f.job_id = h.job_id and f.checkout_id = h.checkout_id and f.problem_id = h.problem_id
            offset 0) f on true
        left join lateral (
            select k.workstations, k.workstations >= (select a.blame_after from pcfarm.farm a) as is_its_fault
            from (
                select count(distinct q.failed_on) + 1 as workstations from pcfarm.requeued q
                where f.message is not null and not f.when_stored and h.came_back
                    and q.job_id = h.job_id and q.problem_id = h.problem_id and q.failed_on <> c.workstation_id
                    -- Since somebody gave it fresh attempts, if somebody did.
                    and q.batch_order > coalesce((
                        select max(n.batch_order) from pcfarm.requeued n
                        where n.job_id = h.job_id and n.problem_id = h.problem_id and n.attempts = 0), -1)) k) e on true),
    numbered as (
        select o.*,
            count(*) over (partition by o.checkout_id, o.was_lost) as lost_together,
            row_number() over (partition by o.checkout_id, o.was_lost order by o.batch_order, o.problem_id) - 1
                as number
        from left_over o),
    blamed as (
        select n.*, n.was_lost and (n.was_alone or (n.was_one_by_one and n.number = 0)) as to_blame from numbered n),
    counted as materialized (
        select b.*,
            b.attempts + case when b.message is not null or b.to_blame then 1 else 0 end as attempts_now,
            b.losses + case when b.was_lost and not b.to_blame then 1 else 0 end as losses_now
        from blamed b),
    exhausted as (
        insert into pcfarm.result as r (job_id, problem_id, checkout_id, accepted_at, attempts, failed, message,
            home_lane, home_order)
        select c.job_id, c.problem_id, c.checkout_id, closed_at, c.attempts_now, true, coalesce(c.message, why), c.home_lane, c.home_order
        from counted c where c.attempts_now >= c.max_attempts
        order by c.job_id, c.problem_id
        on conflict do nothing
        returning r.job_id, r.problem_id, r.checkout_id),
    waiting as materialized (
        select w.*, case when w.grouped then max(w.due) over (partition by w.checkout_id, w.batch_order) else w.due end as due_at
        from (
            select c.*, closed_at + case when c.message is not null and c.retry_delay is not null then least(c.retry_delay_limit,
                    c.retry_delay * power(2, least(c.attempts_now - 1, 20))) * (0.75 + random() / 2) end as due
            from counted c where c.attempts_now < c.max_attempts) w),
    coming_back as materialized (
        select c.*,
            -- The same for a whole convoy of dependent problems, whoever of them had failed before.
            case when c.grouped then how = 'lost' or c.alone else c.was_lost or (c.alone and c.message is null) end as alone_now,
            -- Which go together: those of one convoy if they depend on each other or lost nothing, failed
            -- ones each alone, lost ones by eighths.
            dense_rank() over (partition by c.job_id, c.retry_lane, c.due_at is null order by c.checkout_id, c.was_lost and not c.grouped,
                case when c.grouped or (c.message is null and not c.was_lost) then c.batch_order else 0 end,
                case when c.grouped or (c.message is null and not c.was_lost) then 0
                     when c.message is not null then c.problem_id
                     else c.number / greatest(1, (c.lost_together + 7) / 8) end) as rank
        from waiting c),
    lane_end as materialized (
        select l.job_id, l.retry_lane, pcfarm.end_of_retry_lane(l.job_id, l.retry_lane) as base
        from (select distinct b.job_id, b.retry_lane from coming_back b) l),
    back as (
        insert into pcfarm.requeued as q (job_id, lane_id, batch_order, problem_id, home_lane, home_order, attempts,
            losses, alone, grouped, message, failed_on)
        select b.job_id, b.retry_lane, e.base + b.rank - 1, b.problem_id, b.home_lane, b.home_order, b.attempts_now,
            b.losses_now, b.alone_now, b.grouped, coalesce(b.message, why), b.failed_on
        from coming_back b join lane_end e on e.job_id = b.job_id and e.retry_lane = b.retry_lane
        -- A cancelled job's problems stay where they are.
        where not b.cancelled and b.due_at is null),
    back_later as (
        insert into pcfarm.delayed as d (job_id, problem_id, due_at, home_lane, home_order, attempts, losses, alone, grouped,
            message, failed_on)
        select b.job_id, b.problem_id, b.due_at, b.home_lane, b.home_order, b.attempts_now, b.losses_now, b.alone_now,
            b.grouped, coalesce(b.message, why), b.failed_on
        from coming_back b
        where not b.cancelled and b.due_at is not null),
    noted as (
        insert into pcfarm.progress (job_id, job_type, failed, requeued)
        select n.job_id, n.job_type, sum(n.failed), sum(n.requeued)
        from (select c.job_id, c.job_type, 1 as failed, 0 as requeued
              from exhausted x join closing c on c.checkout_id = x.checkout_id
              union all select b.job_id, b.job_type, 0, 1 from coming_back b where not b.cancelled) n
        group by n.job_id, n.job_type),
    forgotten as (
        delete from pcfarm.failed_attempt f where f.ctid = any (array(
            select f.ctid from pcfarm.checkout c
            cross join lateral (
                select f.ctid from pcfarm.failed_attempt f
                where f.job_id = c.job_id and f.checkout_id = c.checkout_id offset 0) f
            where c.checkout_id = any (closed)))),
    ended as (
        update pcfarm.checkout c set ended_at = closed_at, reason = why,
            ending = case when how <> 'finished' then 'revoked'
                when c.checkout_id in (select o.checkout_id from left_over o) then 'given_back'
                else 'accepted' end
        where c.checkout_id = any (closed)
        returning c.checkout_id, c.workstation_id, c.job_id)
    select e.checkout_id, e.workstation_id, e.job_id, coalesce(b.problems, 0)::integer, coalesce(x.problems, 0)::integer
    from ended e
    left join (select b.checkout_id, count(*) as problems from coming_back b group by 1) b on b.checkout_id = e.checkout_id
    left join (select x.checkout_id, count(*) as problems from exhausted x group by 1) x on x.checkout_id = e.checkout_id;
    if cardinality(closed) > 0 then
        perform pg_notify('pcfarm', case how when 'finished' then 'work' else 'revoked' end);
    end if;
end $$;

-- Giving back unbegun problems -----------------------------------------------------------------------------------

-- Puts problems of a live checkout into the retry lane, at no cost to them, while its workstation goes on with the others.
-- The workstation has not begun them and will not begin them. Passed over are problems with a result or a failed attempt, problems that
-- run alone, and dependent problems of a convoy of which something else is unsolved: such a convoy is never cut. Problems of
-- a convoy that is cut come back each by itself, so that several workstations can share them. A checkout without anything
-- left to solve is closed. Repetition has no effect: the checkout holds returned problems no longer. Returns how many came back.
--
-- A checkout may return all of its problems in any number of calls: a problem that was returned and did not come back would be
-- computed nowhere until the end of its checkout. The cost of a call is linear in the problems of its checkout.
create function pcfarm.give_back(checkout bigint, secret bigint, problem_ids bigint[], why text)
returns integer language plpgsql set enable_seqscan = off as $$
declare
    its        pcfarm.checkout;
    retry_lane bigint;
    given      bigint[];
    is_all     boolean;
begin
    -- In the order of close_checkouts: retry lanes before checkouts.
    perform pcfarm.lock_retry_lanes(array(
        select (l.job_id, l.job_type, l.priority)::pcfarm.retry_lane
        from pcfarm.checkout c join pcfarm.lane l on l.job_id = c.job_id and l.lane_id = c.lane_id
        where c.checkout_id = checkout and c.token = secret and c.ended_at is null));
    select c.* into its from pcfarm.checkout c
    where c.checkout_id = checkout and c.token = secret and c.ended_at is null for update;
    if not found then
        return 0;
    end if;
    select r.lane_id into strict retry_lane
    from pcfarm.lane l join pcfarm.lane r on r.job_id = l.job_id and r.job_type = l.job_type and r.priority = l.priority
        and r.kind = 'retry'
    where l.job_id = its.job_id and l.lane_id = its.lane_id;

    with unsolved as materialized (
        select h.problem_id, h.home_lane, h.home_order, h.batch_order, h.attempts, h.losses, hl.grouped,
            -- Looked up in a hash table: an array would be searched from its beginning for each problem.
            h.problem_id in (select u.problem_id from unnest(problem_ids) u(problem_id)) and not h.alone and not exists (
                select from pcfarm.failed_attempt f
                where f.job_id = h.job_id and f.checkout_id = h.checkout_id and f.problem_id = h.problem_id) as is_wanted
        from pcfarm.held_problem h
        cross join lateral (
            select l.grouped from pcfarm.lane l where l.job_id = h.job_id and l.lane_id = h.home_lane offset 0) hl
        where h.checkout_id = checkout and (
            select r.problem_id from pcfarm.result r where r.job_id = h.job_id and r.problem_id = h.problem_id) is null),
    judged as (
        select u.*, bool_and(u.is_wanted) over (partition by u.batch_order) as is_whole from unsolved u),
    returned as materialized (
        select j.*, dense_rank() over (order by j.batch_order, case when j.is_whole then 0 else j.problem_id end) - 1 as rank
        from judged j where j.is_wanted and (j.is_whole or not j.grouped)),
    summary as materialized (
        select array_agg(r.problem_id) as problems, count(*) = (select count(*) from unsolved) as is_all from returned r),
    lane_end as materialized (select pcfarm.end_of_retry_lane(its.job_id, retry_lane) as base),
    back as (
        insert into pcfarm.requeued
            (job_id, lane_id, batch_order, problem_id, home_lane, home_order, attempts, losses, alone, grouped, message)
        select its.job_id, retry_lane, e.base + r.rank, r.problem_id, r.home_lane, r.home_order, r.attempts, r.losses, false,
            r.grouped, why
        from returned r cross join lane_end e cross join summary s
        where not s.is_all)
    select s.problems, s.is_all into given, is_all from summary s;

    if given is null then
        return 0;
    end if;
    if is_all then
        perform pcfarm.close_checkouts(array[checkout], 'finished', why);
        return cardinality(given);
    end if;
    update pcfarm.checkout c set problems = c.problems - cardinality(given), given_back = c.given_back || given
    where c.checkout_id = checkout;
    insert into pcfarm.progress (job_id, job_type, requeued) values (its.job_id, its.job_type, cardinality(given));
    perform pg_notify('pcfarm', 'work');
    return cardinality(given);
end $$;

-- Coming due --------------------------------------------------------------------------------------------------------

-- Moves problems whose time has come to their retry lanes, at most so many. Those of one convoy that are due and depend on
-- each other, or were never tried, share a batch order. Returns how many.
create function pcfarm.move_due(most integer)
returns integer language plpgsql set enable_seqscan = off set enable_nestloop = off set jit = off as $$
declare
    jobs     bigint[];
    problems bigint[];
    moved    integer;
begin
    select array_agg(d.job_id), array_agg(d.problem_id) into jobs, problems
    from (select d.job_id, d.problem_id from pcfarm.delayed d
        where d.due_at <= clock_timestamp() order by d.due_at limit most) d;
    if jobs is null then
        return 0;
    end if;
    perform pcfarm.lock_retry_lanes(array(
        select (h.job_id, l.job_type, l.priority)::pcfarm.retry_lane
        from (
            select distinct u.job_id, d.home_lane
            from unnest(jobs, problems) as u(job_id, problem_id)
            cross join lateral (
                select d.home_lane from pcfarm.delayed d
                where d.job_id = u.job_id and d.problem_id = u.problem_id offset 0) d) h
        cross join lateral (
            select l.job_type, l.priority from pcfarm.lane l
            where l.job_id = h.job_id and l.lane_id = h.home_lane offset 0) l));
    -- Others may have moved them while this one waited.
    with due as (
        delete from pcfarm.delayed d
        where d.ctid = any (array(
            select d.ctid from unnest(jobs, problems) as u(job_id, problem_id)
            cross join lateral (
                select d.ctid from pcfarm.delayed d
                where d.job_id = u.job_id and d.problem_id = u.problem_id offset 0) d))
            and d.due_at <= clock_timestamp()
        returning d.*),
    home as materialized (
        select h.job_id, h.home_lane, q.lane_id
        from (select distinct d.job_id, d.home_lane from due d) h
        cross join lateral (
            select l.job_type, l.priority from pcfarm.lane l
            where l.job_id = h.job_id and l.lane_id = h.home_lane offset 0) l
        cross join lateral (
            select q.lane_id from pcfarm.lane q
            where q.job_id = h.job_id and q.job_type = l.job_type and q.priority = l.priority and q.kind = 'retry' offset 0) q),
    placed as materialized (
        select d.*, h.lane_id,
            dense_rank() over (partition by h.job_id, h.lane_id order by d.home_lane, d.home_order,
                case when d.grouped or d.message is null then 0 else d.problem_id end) - 1 as rank
        from due d join home h on h.job_id = d.job_id and h.home_lane = d.home_lane),
    lane_end as materialized (
        select l.job_id, l.lane_id, pcfarm.end_of_retry_lane(l.job_id, l.lane_id) as base
        from (select distinct p.job_id, p.lane_id from placed p) l)
    insert into pcfarm.requeued
        (job_id, lane_id, batch_order, problem_id, home_lane, home_order, attempts, losses, alone, grouped, message, failed_on)
    select p.job_id, p.lane_id, e.base + p.rank, p.problem_id, p.home_lane, p.home_order, p.attempts, p.losses, p.alone,
        p.grouped, p.message, p.failed_on
    from placed p join lane_end e on e.job_id = p.job_id and e.lane_id = p.lane_id;
    get diagnostics moved = row_count;
    if moved > 0 then
        perform pg_notify('pcfarm', 'work');
    end if;
    return moved;
end $$;

-- Recognising the database ----------------------------------------------------------------------------------------

-- Called on a pool's first connection to a database that it has not seen: another system identifier or timeline revokes
-- every checkout, at no cost to their problems. Returns how many.
create function pcfarm.recognise_database(system_identifier bigint, timeline bigint)
returns integer language plpgsql as $$
declare
    known   pcfarm.database;
    revoked integer := 0;
begin
    insert into pcfarm.database (system_identifier, timeline)
    values (recognise_database.system_identifier, recognise_database.timeline)
    on conflict do nothing;
    select d.* into strict known from pcfarm.database d for update;
    if known.system_identifier <> recognise_database.system_identifier
        or known.timeline <> recognise_database.timeline
    then
        select count(*) into revoked from pcfarm.close_checkouts(
            array(select c.checkout_id from pcfarm.checkout c where c.ended_at is null and c.job_id > 0), 'unreceived',
            'the database was restored or promoted');
        update pcfarm.database d set system_identifier = recognise_database.system_identifier,
            timeline = recognise_database.timeline;
    end if;
    return revoked;
end $$;

-- Ending a job --------------------------------------------------------------------------------------------------

-- Ends an open job that is empty: every lane handed out, no checkout live. One statement, one snapshot: a
-- checkout that closes meanwhile is either live in it or has requeued its problems in it. The job's row keeps
-- loads and hand-outs out until commit. Passed over when somebody else holds it; the next sweep comes soon.
create function pcfarm.end_job_if_empty(job bigint)
returns text language plpgsql as $$
declare
    ended text;
begin
    perform from pcfarm.job j where j.job_id = job and j.state = 'open' and not j.standing for update skip locked;
    if not found then
        return null;
    end if;
    update pcfarm.job j set ended_at = clock_timestamp(),
        state = case when exists (select from pcfarm.result r where r.job_id = job and r.failed) then 'failed' else 'done' end
    where j.job_id = job
        and not exists (select from pcfarm.checkout c where c.job_id = job and c.ended_at is null)
        and not exists (select from pcfarm.delayed d where d.job_id = job)
        -- As pcfarm.waits_for has it, which would be planned anew with each call.
        and not exists (
            select from pcfarm.job_after a
            join pcfarm.job b on b.job_id = a.after_job and b.state <> 'done' and not (a.ended and b.ended_at is not null)
            where a.job_id = job)
        and not exists (
            select from pcfarm.lane l
            left join lateral (
                select c.to_order from pcfarm.checkout c
                where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1) p on true
            where l.job_id = job and not l.exhausted and coalesce(p.to_order, 0) < case l.kind when 'retry' then
                coalesce((select r.batch_order + 1 from pcfarm.requeued r where r.job_id = l.job_id
                    and r.lane_id = l.lane_id order by r.batch_order desc limit 1), 0)
                else l.next_insertion end)
    returning j.state into ended;
    if ended is not null then
        perform pg_notify('pcfarm', 'work');
    end if;
    return ended;
end $$;
