-- Accepting results and closing checkouts: the transitions that fence.
--
-- Each is one call, so no lock is ever held while a server thinks or is frozen. Lock order: job, lanes,
-- checkouts in ascending id, results by key, the user's tables. A statement that has waited for a lock sees an
-- older snapshot than the row it got, so what is unfinished is always read by the statement after it.

-- What checkouts hold: rows of a load lane, or what came back to a retry lane. Immutable once handed out.
create view pcfarm.held_problem as
select c.checkout_id, p.job_id, p.problem_id, p.lane_id as home_lane, p.batch_order as home_order,
    p.batch_order, 0 as attempts, 0 as losses, false as alone, false as came_back
from pcfarm.checkout c
join pcfarm.problem p on p.job_id = c.job_id and p.lane_id = c.lane_id
    and p.batch_order >= c.from_order and p.batch_order < c.to_order
union all
select c.checkout_id, r.job_id, r.problem_id, r.home_lane, r.home_order,
    r.batch_order, r.attempts, r.losses, r.alone, true
from pcfarm.checkout c
join pcfarm.requeued r on r.job_id = c.job_id and r.lane_id = c.lane_id
    and r.batch_order >= c.from_order and r.batch_order < c.to_order;

-- Write-back --------------------------------------------------------------------------------------------------

create type pcfarm.write_back_failure as (problem_id bigint, message text);

-- Runs a job type's write-back. When it fails it is split until the failing problem is alone; what is not the
-- data's fault (deadlock, disk full, cancelled, shutting down) is the transaction's and goes up.
create function pcfarm.write_back(job_type text, problem_ids bigint[], keys text[], solutions jsonb[])
returns setof pcfarm.write_back_failure language plpgsql as $$
declare
    members integer := cardinality(problem_ids);
    half    integer := members / 2;
    failure text;
begin
    if members = 0 then
        return;
    end if;
    begin
        execute format('select pcfarm_write_back.%I($1, $2)', job_type) using keys, solutions;
        -- Deferred triggers of the user's tables would otherwise fire at commit, with the server's rights.
        set constraints all immediate;
        return;
    exception when others then
        if left(sqlstate, 2) in ('08', '40', '53', '54', '57', '58', 'XX') or sqlstate = '55P03' then
            raise;
        end if;
        get stacked diagnostics failure = message_text;
    end;
    if members = 1 then
        return next (problem_ids[1], 'write-back: ' || failure)::pcfarm.write_back_failure;
    else
        return query select * from pcfarm.write_back(job_type, problem_ids[:half], keys[:half], solutions[:half]);
        return query select * from pcfarm.write_back(job_type, problem_ids[half + 1:], keys[half + 1:], solutions[half + 1:]);
    end if;
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

-- Stores results under live checkouts, all of one job type. The caller has checked that each problem is of its
-- checkout, which never changes; that the checkout is live is decided here, under its lock.
--
-- Per checkout, in ascending id: its token, and whether these results are all it waits for. Per result: the
-- position of its checkout in checkout_ids, attempts used before this one, whether this was the last, where the
-- problem row is, a message if it failed, else the solution.
create function pcfarm.accept(
    type text, checkout_ids bigint[], tokens bigint[], closing boolean[],
    positions integer[], problem_ids bigint[], keys text[], attempts integer[], last_attempt boolean[],
    home_lanes bigint[], home_orders bigint[], messages text[], solutions jsonb[])
returns setof pcfarm.verdict language plpgsql as $$
declare
    live        boolean[];
    jobs        bigint[];
    keep        boolean;
    writes_back boolean;
    stored      bigint[];
    failures    pcfarm.write_back_failure[] := '{}';
begin
    perform from pcfarm.checkout c where c.checkout_id = any (checkout_ids) order by c.checkout_id for update;
    select array_agg(coalesce(c.token = t.token and c.ended_at is null and c.job_type = type, false) order by t.n),
        array_agg(c.job_id order by t.n)
    into live, jobs
    from unnest(checkout_ids, tokens) with ordinality as t(checkout_id, token, n)
    left join pcfarm.checkout c on c.checkout_id = t.checkout_id;
    select t.keep_results, t.write_back is not null into keep, writes_back
    from pcfarm.job_type t where t.name = type;

    with inserted as (
        insert into pcfarm.result as r (job_id, problem_id, checkout_id, attempts, failed, message, home_lane,
            home_order, solution)
        select jobs[d.position], d.problem_id, checkout_ids[d.position], d.attempts + 1, d.message is not null,
            d.message, case when d.message is not null then d.home_lane end,
            case when d.message is not null then d.home_order end, case when keep then d.solution end
        from unnest(positions, problem_ids, attempts, last_attempt, home_lanes, home_orders, messages, solutions)
            as d(position, problem_id, attempts, last_attempt, home_lane, home_order, message, solution)
        where live[d.position] and (d.message is null or d.last_attempt)
        order by jobs[d.position], d.problem_id
        on conflict do nothing
        returning r.problem_id)
    select coalesce(array_agg(i.problem_id), '{}') into stored from inserted i;

    -- A failure that was not the last attempt waits here until its checkout closes.
    insert into pcfarm.failed_attempt (job_id, checkout_id, problem_id, message)
    select jobs[d.position], checkout_ids[d.position], d.problem_id, d.message
    from unnest(positions, problem_ids, last_attempt, messages) as d(position, problem_id, last_attempt, message)
    where live[d.position] and d.message is not null and not d.last_attempt
    on conflict do nothing;

    if writes_back then
        select coalesce(array_agg(f), '{}') into failures
        from (select array_agg(d.problem_id order by d.n) as problem_ids, array_agg(d.key order by d.n) as keys,
                  array_agg(d.solution order by d.n) as solutions
              from unnest(problem_ids, keys, messages, solutions) with ordinality
                  as d(problem_id, key, message, solution, n)
              where d.message is null and d.problem_id = any (stored)) s
        cross join lateral pcfarm.write_back(type, s.problem_ids, s.keys, s.solutions) f;
        -- The statement's text may have turned durability off, or anything else.
        reset all;
        set local synchronous_commit = on;
        if cardinality(failures) > 0 then
            perform pcfarm.take_back_stored(checkout_ids, jobs, failures, positions, problem_ids, attempts,
                last_attempt, home_lanes, home_orders);
        end if;
    end if;

    insert into pcfarm.progress (job_id, done, failed)
    select jobs[d.position], count(*) filter (where d.message is null and f.problem_id is null),
        count(*) filter (where d.message is not null or (f.problem_id is not null and d.last_attempt))
    from unnest(positions, problem_ids, messages, last_attempt) as d(position, problem_id, message, last_attempt)
    join (select distinct unnest(stored) as problem_id) s on s.problem_id = d.problem_id
    left join unnest(failures) f on f.problem_id = d.problem_id
    where live[d.position]
    group by 1;

    update pcfarm.checkout c set ended_at = clock_timestamp(), ending = 'accepted'
    from unnest(checkout_ids, closing, live) as t(checkout_id, closing, live)
    where c.checkout_id = t.checkout_id and t.closing and t.live
        and not exists (select from unnest(failures) f join unnest(positions, problem_ids) d(position, problem_id)
            on d.problem_id = f.problem_id where checkout_ids[d.position] = c.checkout_id);

    return query
    select t.checkout_id,
        case when live[t.n] then 'accepted'
             when c.token is distinct from t.token then 'unknown'
             when c.ending = 'revoked' then 'revoked'
             when c.ending is not null then 'already_accepted'
             else 'unknown' end,
        case when live[t.n] then '' else coalesce(c.reason, '') end,
        coalesce(k.accepted, 0)::integer, (coalesce(k.delivered, 0) - coalesce(k.accepted, 0))::integer,
        live[t.n] and c.ended_at is not null
    from unnest(checkout_ids, tokens) with ordinality as t(checkout_id, token, n)
    left join pcfarm.checkout c on c.checkout_id = t.checkout_id
    left join (
        select d.position, count(*) as delivered,
            count(*) filter (where live[d.position] and (s.problem_id is not null
                or (d.message is not null and not d.last_attempt))) as accepted
        from unnest(positions, problem_ids, messages, last_attempt) as d(position, problem_id, message, last_attempt)
        left join (select distinct unnest(stored) as problem_id) s on s.problem_id = d.problem_id
        group by d.position) k on k.position = t.n
    order by t.n;
end $$;

-- Undoes the results whose write-back failed: that costs those problems an attempt.
create function pcfarm.take_back_stored(
    checkout_ids bigint[], jobs bigint[], failures pcfarm.write_back_failure[], positions integer[],
    problem_ids bigint[], attempts integer[], last_attempt boolean[], home_lanes bigint[], home_orders bigint[])
returns void language plpgsql as $$
begin
    update pcfarm.result r set failed = true, message = f.message, solution = null,
        home_lane = d.home_lane, home_order = d.home_order
    from unnest(failures) f
    join unnest(positions, problem_ids, last_attempt, home_lanes, home_orders)
        as d(position, problem_id, last_attempt, home_lane, home_order) on d.problem_id = f.problem_id
    where r.job_id = jobs[d.position] and r.problem_id = f.problem_id and d.last_attempt;
    delete from pcfarm.result r
    using unnest(failures) f
    join unnest(positions, problem_ids, last_attempt) as d(position, problem_id, last_attempt)
        on d.problem_id = f.problem_id
    where r.job_id = jobs[d.position] and r.problem_id = f.problem_id and not d.last_attempt;
    insert into pcfarm.failed_attempt (job_id, checkout_id, problem_id, message)
    select jobs[d.position], checkout_ids[d.position], f.problem_id, f.message
    from unnest(failures) f
    join unnest(positions, problem_ids, last_attempt) as d(position, problem_id, last_attempt)
        on d.problem_id = f.problem_id
    where not d.last_attempt
    on conflict do nothing;
end $$;

-- Close -------------------------------------------------------------------------------------------------------

-- Closes live checkouts and puts what they had not finished into the retry lane.
--
--   finished   the agent is done with them: failed attempts count, the rest comes back at no cost
--   unreceived they never arrived: all comes back at no cost
--   lost       the workstation died or the time ran out: a problem that was alone pays with an attempt, the
--              others count a loss and come back in checkouts of an eighth, so that a poisonous one is soon
--              alone; a convoy of dependent problems stays whole and comes back to be run one by one, so that
--              the first one left is known to be at fault
--
-- Checkouts that are not live any more are passed over. Returns those that were closed.
create function pcfarm.close_checkouts(checkout_ids bigint[], how text, why text)
returns table (checkout_id bigint, workstation_id bigint, job_id bigint, requeued integer, failed integer)
language plpgsql set enable_seqscan = off as $$
declare
    closed bigint[];
begin
    -- Requeueing appends to retry lanes: their locks come before the checkouts', and order the appending.
    perform from pcfarm.lane l
    where l.kind = 'retry' and (l.job_id, l.job_type) in (
        select c.job_id, c.job_type from pcfarm.checkout c where c.checkout_id = any (checkout_ids))
    order by l.job_id, l.lane_id for update;
    perform from pcfarm.checkout c where c.checkout_id = any (checkout_ids) and c.ended_at is null
    order by c.checkout_id for update;
    select coalesce(array_agg(c.checkout_id), '{}') into closed
    from pcfarm.checkout c where c.checkout_id = any (checkout_ids) and c.ended_at is null;

    return query
    with left_over as materialized (
        select h.*, c.job_type, c.workstation_id as held_by, l.lane_id as retry_lane, hl.grouped, t.max_attempts,
            f.message,
            f.problem_id is null and how = 'lost' as was_lost,
            c.problems = 1 as was_alone,
            -- Run one by one: the first that is left was the one being run.
            hl.grouped and h.came_back and h.alone as was_one_by_one
        from pcfarm.checkout c
        join pcfarm.held_problem h on h.checkout_id = c.checkout_id
        join pcfarm.lane l on l.job_id = c.job_id and l.job_type = c.job_type and l.kind = 'retry'
        join pcfarm.lane hl on hl.job_id = h.job_id and hl.lane_id = h.home_lane
        join pcfarm.job_type t on t.name = c.job_type
        left join pcfarm.result r on r.job_id = h.job_id and r.problem_id = h.problem_id
        left join pcfarm.failed_attempt f on f.job_id = h.job_id and f.checkout_id = c.checkout_id
            and f.problem_id = h.problem_id
        where c.checkout_id = any (closed) and r.problem_id is null),
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
        insert into pcfarm.result as r (job_id, problem_id, checkout_id, attempts, failed, message, home_lane, home_order)
        select c.job_id, c.problem_id, c.checkout_id, c.attempts_now, true, coalesce(c.message, why), c.home_lane, c.home_order
        from counted c where c.attempts_now >= c.max_attempts
        order by c.job_id, c.problem_id
        on conflict do nothing
        returning r.job_id, r.problem_id, r.checkout_id),
    coming_back as materialized (
        select c.*,
            -- Which go together: those of one convoy if they depend on each other or lost nothing, failed
            -- ones each alone, lost ones by eighths.
            dense_rank() over (partition by c.job_id, c.retry_lane order by c.checkout_id, c.was_lost,
                case when c.grouped or (c.message is null and not c.was_lost) then c.batch_order else 0 end,
                case when c.grouped or (c.message is null and not c.was_lost) then 0
                     when c.message is not null then c.problem_id
                     else c.number / greatest(1, (c.lost_together + 7) / 8) end) as rank
        from counted c where c.attempts_now < c.max_attempts),
    lane_end as (
        select l.job_id, l.retry_lane,
            coalesce((select q.batch_order + 1 from pcfarm.requeued q
                where q.job_id = l.job_id and q.lane_id = l.retry_lane order by q.batch_order desc limit 1), 0) as base
        from (select distinct b.job_id, b.retry_lane from coming_back b) l),
    back as (
        insert into pcfarm.requeued as q (job_id, lane_id, batch_order, problem_id, home_lane, home_order, attempts,
            losses, alone, grouped, message)
        select b.job_id, b.retry_lane, e.base + b.rank - 1, b.problem_id, b.home_lane, b.home_order, b.attempts_now,
            b.losses_now, b.was_lost or (b.alone and b.message is null), b.grouped,
            coalesce(b.message, why)
        from coming_back b join lane_end e on e.job_id = b.job_id and e.retry_lane = b.retry_lane
        -- A cancelled job's problems stay where they are.
        join pcfarm.job j on j.job_id = b.job_id and j.state <> 'cancelled'
        returning q.job_id, q.problem_id),
    noted as (
        insert into pcfarm.progress (job_id, failed, requeued)
        select n.job_id, sum(n.failed), sum(n.requeued)
        from (select x.job_id, 1 as failed, 0 as requeued from exhausted x
              union all select b.job_id, 0, 1 from back b) n
        group by n.job_id),
    forgotten as (
        delete from pcfarm.failed_attempt f
        using pcfarm.checkout c
        where c.checkout_id = any (closed) and f.job_id = c.job_id and f.checkout_id = c.checkout_id),
    ended as (
        update pcfarm.checkout c set ended_at = clock_timestamp(), reason = why,
            ending = case when how <> 'finished' then 'revoked'
                when exists (select from left_over o where o.checkout_id = c.checkout_id) then 'given_back'
                else 'accepted' end
        where c.checkout_id = any (closed)
        returning c.checkout_id, c.workstation_id, c.job_id)
    select e.checkout_id, e.workstation_id, e.job_id,
        (select count(*) from coming_back b where b.checkout_id = e.checkout_id)::integer,
        (select count(*) from exhausted x where x.checkout_id = e.checkout_id)::integer
    from ended e;
    if cardinality(closed) > 0 then
        perform pg_notify('pcfarm', case how when 'finished' then 'work' else 'revoked' end);
    end if;
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
