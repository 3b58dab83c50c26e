-- The clock: whether the farm may believe the database's time, and the repair of times that a wrong clock wrote.
--
-- A clock that steps ahead makes every row look old. So nothing is removed for its age while the clock is unproven. Servers compare
-- the database's clock with their monotonic clocks and write their decision here; the rules are in server/src/clock.

create table pcfarm.clock (
    singleton          boolean primary key default true constraint one_row check (singleton),
    -- The newest look of a server, by the database's clock. Null: no server has looked yet.
    checked_at         timestamptz,
    -- Null: the clock is proven.
    unproven_since     timestamptz,
    -- Until when the clock is unproven after a step, while a server's clock differs, and after stored times that cannot be. Each
    -- deadline is computed anew after a step, so that it is always a time of the present clock.
    step_until         timestamptz,
    difference_until   timestamptz,
    stored_until       timestamptz,
    -- The last step, the last difference between the clocks of the database and of a server, and that server, for people.
    step_seconds       double precision,
    difference_seconds double precision,
    difference_server  bigint,
    -- The newest time that was stored when a server looked first.
    newest             timestamptz,
    -- Difference, and newest stored time in the future, that an administrator or an hour without a step has accepted.
    tolerated_seconds  double precision not null default 0,
    accepted_newest    timestamptz,
    accepted_by        name,
    accepted_at        timestamptz,
    -- The clock has stepped ahead by so many seconds, from a time of the clock before to a time of the present clock. Time limits of
    -- checkouts that were handed out until then end so much later.
    stepped_at         timestamptz,
    stepped_to         timestamptz,
    stepped_seconds    double precision not null default 0,
    -- Sum of the steps since the clock was proven last. Below -5: the clock is probably behind.
    moved_seconds      double precision not null default 0,
    constraint unproven_for_a_reason check (
        (unproven_since is null) = (num_nonnulls(step_until, difference_until, stored_until) = 0))
);
insert into pcfarm.clock default values;
comment on table pcfarm.clock is
    'Whether the database''s clock is proven. `pcfarm clock` shows it, `pcfarm clock accept` ends an unproven time.';

-- Returns whether a server looks at the clock: its last look is less than a minute away, or no server has looked ever. Otherwise the
-- clock has stepped since, even before a server has found out, or no server looks any more.
create function pcfarm.clock_is_watched()
returns boolean language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return coalesce((
        select c.checked_at is null
            or c.checked_at between clock_timestamp() - interval '1 minute' and clock_timestamp() + interval '1 minute'
        from pcfarm.clock c), false);
end $$;

-- Returns whether rows may be removed for their age.
create function pcfarm.clock_is_proven()
returns boolean language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return pcfarm.clock_is_watched() and coalesce((select c.unproven_since is null from pcfarm.clock c), false);
end $$;

-- Returns whether checkouts are revoked for their time limits. Only a step makes deadlines wrong. A farm that was off, and a server
-- whose clock differs, do not: hung programs do not keep their problems meanwhile.
create function pcfarm.time_limits_hold()
returns boolean language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return pcfarm.clock_is_watched() and coalesce((select c.step_until is null from pcfarm.clock c), false);
end $$;

-- Returns whether the clock is probably behind: by the steps since it was proven, or because it shows a time before the last look, which
-- no server has found out yet. A clock that is behind takes right times for times in the future, so it corrects none.
create function pcfarm.clock_is_behind()
returns boolean language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return coalesce((
        select c.moved_seconds < -5 or clock_timestamp() < c.checked_at - interval '5 seconds' from pcfarm.clock c), false);
end $$;

create function pcfarm.note_clock()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.event (what, details)
    values (case when new.unproven_since is not null then 'clock unproven'
            when new.accepted_at is distinct from old.accepted_at then 'clock accepted' else 'clock proven' end,
        jsonb_strip_nulls(jsonb_build_object(
            'step_seconds', case when new.step_until is not null then new.step_seconds end,
            'difference_seconds', case when new.difference_until is not null then new.difference_seconds end,
            'server_id', case when new.difference_until is not null then new.difference_server end,
            'newest', case when new.stored_until is not null then new.newest end)));
    return null;
end $$;
create trigger note after update on pcfarm.clock for each row
    when ((old.unproven_since is null) <> (new.unproven_since is null)) execute function pcfarm.note_clock();

create function pcfarm.accept_clock()
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pcfarm.check_transaction();
    if not pcfarm.is_administrator() then
        raise exception 'accepting the clock is for administrators'
            using errcode = 'insufficient_privilege', hint = 'Those may have it who may act as the owner of schema pcfarm.';
    end if;
    update pcfarm.clock c set unproven_since = null, step_until = null, difference_until = null, stored_until = null,
        tolerated_seconds = abs(coalesce(c.difference_seconds, 0)) + 60, accepted_newest = greatest(c.accepted_newest, c.newest),
        moved_seconds = 0, accepted_by = pcfarm.acting_user(), accepted_at = clock_timestamp();
end $$;
comment on function pcfarm.accept_clock is
    'Says that the database''s clock is right: what is old is removed again. Look at `select now()` first.';

-- Putting right -----------------------------------------------------------------------------------------------------------

-- Times that were computed by a clock that was ahead, and for which the farm would wait: each is computed again from now. The
-- rule for each: no stored start lies in the future, and no wait is longer than the longest that its statement gives. Schedules
-- are put right by the ticker, which knows their recurrences. Times that say what happened stay as they were written.
--
-- Each function changes a batch of rows of one table. It passes over rows that others have locked, so
-- that it neither waits nor takes part in a deadlock. It returns how many rows it has changed: after a whole batch there may be
-- more. It finds rows by an index of open work, because it runs each minute and rows of ended work are many.
--
-- None runs while the clock is behind (pcfarm.clock_is_behind).

-- Checkouts: a full time limit from now, if they have one. The index finds live ones, and no ended ones.
create function pcfarm.put_checkouts_right(batch integer)
returns bigint language sql as $$
    with ahead as materialized (
        select c.checkout_id from pcfarm.checkout c
        where c.job_id > 0 and c.ended_at is null and c.checked_out_at > statement_timestamp() + interval '1 second'),
    locked as materialized (
        select c.checkout_id from pcfarm.checkout c
        where c.checkout_id = any (array(select a.checkout_id from ahead a order by 1)) and c.ended_at is null
        order by c.checkout_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.checkout c set checked_out_at = clock_timestamp(), deadline = clock_timestamp() + (c.deadline - c.checked_out_at)
        where c.checkout_id = any (array(select l.checkout_id from locked l)) returning 1)
    select count(*) from changed
$$;

-- Failed problems between attempts: no longer than the delay after that many attempts. Problems of a convoy that depend on each other
-- wait for the longest delay among them, and keep one time. Problems that were loaded with a time of their own have no message, and
-- keep it. A thorough search computes the delay of each problem that waits longer than the shortest delay of all job types; any other
-- looks at those alone that wait longer than any delay.
create function pcfarm.put_delayed_right(batch integer, thorough boolean)
returns bigint language plpgsql as $$
declare
    -- One time for all that is corrected together.
    moment  constant timestamptz := clock_timestamp();
    least_wait interval;
    total   bigint := 0;
    changed bigint;
    page    bigint;
    -- Pages go down from the longest wait.
    below   timestamptz := 'infinity';
begin
    select 1.25 * case when thorough then min(least(t.retry_delay, t.retry_delay_limit)) else max(t.retry_delay_limit) end into least_wait
    from pcfarm.job_type t;
    loop
        with far as materialized (
            select o.job_id, o.problem_id, o.due_at, o.home_lane, o.home_order, o.grouped, o.attempts
            from pcfarm.delayed o
            where o.message is not null and o.due_at > moment + interval '1 second' + least_wait and o.due_at < below
            order by o.due_at desc
            fetch first batch rows with ties),
        waiting as materialized (
            select f.*, max(t.longest) over (
                partition by f.due_at, f.job_id, f.home_lane, f.home_order, case when f.grouped then 0 else f.problem_id end) as longest
            from far f
            cross join lateral (
                select l.job_type from pcfarm.lane l where l.job_id = f.job_id and l.lane_id = f.home_lane offset 0) l
            cross join lateral (
                select 1.25 * least(t.retry_delay_limit, t.retry_delay * power(2, least(greatest(f.attempts, 1) - 1, 20))) as longest
                from pcfarm.job_type t where t.name = l.job_type offset 0) t),
        wrong as materialized (
            select w.* from waiting w where w.due_at > moment + interval '1 second' + w.longest),
        locked as materialized (
            select d.job_id, d.problem_id, w.longest
            from (
                select w.job_id, w.problem_id, w.longest from wrong w where not w.grouped
                union all
                -- Also problems of the convoy that have not failed themselves.
                select g.job_id, d.problem_id, g.longest
                from (select distinct w.due_at, w.job_id, w.home_lane, w.home_order, w.longest from wrong w where w.grouped) g
                cross join lateral (
                    select d.problem_id from pcfarm.delayed d
                    where d.due_at = g.due_at and d.job_id = g.job_id and d.home_lane = g.home_lane and d.home_order = g.home_order
                    offset 0) d) w
            join pcfarm.delayed d on d.job_id = w.job_id and d.problem_id = w.problem_id
            for update of d skip locked),
        corrected as (
            update pcfarm.delayed d set due_at = moment + l.longest
            from locked l where d.job_id = l.job_id and d.problem_id = l.problem_id returning 1)
        select (select count(*) from corrected), count(*), min(f.due_at) into changed, page, below from far f;
        total := total + changed;
        exit when total >= batch or page < batch;
    end loop;
    return total;
end $$;

-- Back-off of schedules' loads, submissions, alerts and wake-ups. Before the first attempt nothing waits for a time.
create function pcfarm.put_loads_right(batch integer)
returns bigint language sql as $$
    with locked as materialized (
        select l.job_id, l.number from pcfarm.schedule_load l
        where l.loaded_at is null and l.next_attempt_at > statement_timestamp() + interval '1 second'
            and l.next_attempt_at > statement_timestamp() + interval '1 second' + case when l.attempts = 0 then interval '0'
                else greatest(l.time_limit + interval '1 minute', least(interval '10 minutes', interval '1 second' * 2 ^ least(l.attempts, 12)))
                end
        order by l.next_attempt_at
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.schedule_load l set next_attempt_at = clock_timestamp()
        from locked o where l.job_id = o.job_id and l.number = o.number returning 1)
    select count(*) from changed
$$;

-- A server that loads a submission holds it for 15 seconds at a time, and tries again after a minute at most. The age of an unfinished
-- upload counts, too.
create function pcfarm.put_submissions_right(batch integer)
returns bigint language sql as $$
    with far as materialized (
        select s.submission_id from pcfarm.submission s
        where s.state = 'stored' and s.next_attempt_at > statement_timestamp() + interval '1 second'
            + case when s.attempts = 0 then interval '0' else interval '1 minute' end),
    unfinished as materialized (
        select s.submission_id from pcfarm.submission s
        where s.state = 'receiving' and s.touched_at > statement_timestamp() + interval '1 second'),
    locked as materialized (
        select s.submission_id from pcfarm.submission s
        where s.submission_id = any (array(select f.submission_id from far f union all select u.submission_id from unfinished u))
            and s.state in ('stored', 'receiving')
        order by s.submission_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.submission s set next_attempt_at = least(s.next_attempt_at, clock_timestamp()),
            touched_at = least(s.touched_at, clock_timestamp())
        where s.submission_id = any (array(select l.submission_id from locked l)) returning 1)
    select count(*) from changed
$$;

-- The server that delivers an alert holds it for 2 minutes. Between attempts the wait doubles from 15 seconds to an hour.
create function pcfarm.put_alerts_right(batch integer)
returns bigint language sql as $$
    with far as materialized (
        select a.alert_id from pcfarm.alert a
        where a.next_attempt_at > statement_timestamp() + interval '1 second' + case when a.attempts = 0 then interval '0'
            else greatest(interval '2 minutes', 1.25 * least(interval '1 hour', interval '15 seconds' * 2 ^ least(a.attempts - 1, 12))) end),
    locked as materialized (
        select a.alert_id from pcfarm.alert a
        where a.alert_id = any (array(select f.alert_id from far f)) and a.next_attempt_at is not null
        order by a.alert_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.alert a set next_attempt_at = clock_timestamp()
        where a.alert_id = any (array(select l.alert_id from locked l)) returning 1)
    select count(*) from changed
$$;

create function pcfarm.put_wakes_right(batch integer)
returns bigint language sql as $$
    with locked as materialized (
        select w.workstation_id from pcfarm.wake w where w.next_try_at > statement_timestamp() + interval '31 seconds'
        order by w.workstation_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.wake w set next_try_at = clock_timestamp()
        where w.workstation_id in (select l.workstation_id from locked l) returning 1)
    select count(*) from changed
$$;

-- Digests come daily.
create function pcfarm.put_digests_right(batch integer)
returns bigint language sql as $$
    with locked as materialized (
        select s.subscription_id from pcfarm.subscription s
        where s.next_digest_at > statement_timestamp() + interval '2 days 1 second'
        order by s.subscription_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.subscription s set digested_at = least(s.digested_at, clock_timestamp()),
            next_digest_at = pcfarm.next_digest(s.digest_at, s.time_zone, clock_timestamp())
        where s.subscription_id in (select l.subscription_id from locked l) returning 1)
    select count(*) from changed
$$;

-- Starts of pauses between wake-ups, of connections, of trust, of times without presence sources, and drains with a time limit.
-- The recycler corrects silence (put_leases_right.sql).
create function pcfarm.put_workstations_right(batch integer)
returns bigint language sql as $$
    with locked as materialized (
        select w.workstation_id from pcfarm.workstation w
        where greatest(w.woken_at, w.drained_since, w.connected_at, w.cannot_tell_since, w.trusted_since)
            > statement_timestamp() + interval '1 second'
        order by w.workstation_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.workstation w set woken_at = least(w.woken_at, clock_timestamp()),
            drain_deadline = case when w.drained_since > clock_timestamp() then clock_timestamp() + (w.drain_deadline - w.drained_since)
                else w.drain_deadline end,
            drained_since = least(w.drained_since, clock_timestamp()), connected_at = least(w.connected_at, clock_timestamp()),
            cannot_tell_since = least(w.cannot_tell_since, clock_timestamp()),
            trusted_since = least(w.trusted_since, clock_timestamp())
        where w.workstation_id in (select l.workstation_id from locked l) returning 1)
    select count(*) from changed
$$;

-- Days without work. A day that has not come is counted again.
create function pcfarm.put_records_right(batch integer)
returns bigint language sql as $$
    with locked as materialized (
        select r.workstation_id from pcfarm.workstation_record r
        where greatest(r.worked_at, r.looked_at) > statement_timestamp() + interval '1 second'
            or r.idle_on > (statement_timestamp() at time zone 'UTC')::date
        order by r.workstation_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.workstation_record r set worked_at = least(r.worked_at, clock_timestamp()),
            looked_at = least(r.looked_at, clock_timestamp()),
            idle_on = case when r.idle_on <= (clock_timestamp() at time zone 'UTC')::date then r.idle_on end
        where r.workstation_id in (select l.workstation_id from locked l) returning 1)
    select count(*) from changed
$$;

-- Signals count as known for a while from said_at on, and so would a signal from the future until that time has come.
create function pcfarm.put_signals_right(batch integer)
returns bigint language sql as $$
    with locked as materialized (
        select s.name from pcfarm.signal s where s.said_at > statement_timestamp() + interval '1 second'
        order by s.name
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.signal s set said_at = clock_timestamp() where s.name in (select l.name from locked l) returning 1)
    select count(*) from changed
$$;

-- Ages of files, which otherwise stay for as long as the clock was ahead.
create function pcfarm.put_files_right(batch integer)
returns bigint language sql as $$
    with ahead as materialized (
        select f.file_id from pcfarm.file f
        where f.touched_at > statement_timestamp() + interval '1 second' and f.touched_at < 'infinity'),
    locked as materialized (
        select f.file_id from pcfarm.file f
        where f.file_id = any (array(select a.file_id from ahead a)) and f.touched_at < 'infinity'
        order by f.file_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.file f set touched_at = clock_timestamp() where f.file_id in (select l.file_id from locked l) returning 1)
    select count(*) from changed
$$;

-- Tokens that were made by a clock that was ahead are valid for so much longer. A user may have given their end, so they keep it,
-- and an event names them: an administrator revokes those that are too long.
create function pcfarm.put_tokens_right(batch integer)
returns bigint language plpgsql as $$
declare
    ahead jsonb;
begin
    with locked as materialized (
        select t.token_id, t.created_at from pcfarm.api_token t
        where t.created_at > statement_timestamp() + interval '1 second'
        order by t.token_id
        limit batch
        for update skip locked),
    locked_join as materialized (
        select t.join_token_id, t.created_at from pcfarm.join_token t
        where t.created_at > statement_timestamp() + interval '1 second'
        order by t.join_token_id
        limit batch
        for update skip locked),
    changed as (
        update pcfarm.api_token t set created_at = clock_timestamp() from locked l where t.token_id = l.token_id
        returning jsonb_build_object('token', t.token_id, 'user', t.user_name, 'name', t.name, 'made_at', l.created_at,
            'expires_at', t.expires_at) as token, t.expires_at > clock_timestamp() and t.revoked_at is null as is_valid),
    changed_join as (
        update pcfarm.join_token t set created_at = clock_timestamp() from locked_join l where t.join_token_id = l.join_token_id
        returning jsonb_build_object('join_token', t.join_token_id, 'user', t.created_by, 'made_at', l.created_at,
            'expires_at', t.expires_at) as token, t.expires_at > clock_timestamp() and t.revoked_at is null as is_valid)
    select jsonb_agg(c.token) filter (where c.is_valid) into ahead
    from (select * from changed union all select * from changed_join) c;
    if ahead is null then
        return 0;
    end if;
    insert into pcfarm.event (what, details) values ('tokens outlive their time', jsonb_build_object('tokens', ahead));
    return jsonb_array_length(ahead);
end $$;

-- Corrects a batch of one part, unless the clock is behind. One server at a time works at a part; another passes over it.
create function pcfarm.put_clock_right(part text, batch integer default 1000, thorough boolean default true)
returns bigint language plpgsql set enable_nestloop = on set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
    if pcfarm.clock_is_behind() or not pg_try_advisory_xact_lock(hashtextextended('pcfarm.put_clock_right ' || part, 0)) then
        return 0;
    end if;
    case part
        when 'checkouts' then return pcfarm.put_checkouts_right(batch);
        when 'delayed' then return pcfarm.put_delayed_right(batch, thorough);
        when 'loads' then return pcfarm.put_loads_right(batch);
        when 'submissions' then return pcfarm.put_submissions_right(batch);
        when 'alerts' then return pcfarm.put_alerts_right(batch);
        when 'wakes' then return pcfarm.put_wakes_right(batch);
        when 'digests' then return pcfarm.put_digests_right(batch);
        when 'workstations' then return pcfarm.put_workstations_right(batch);
        when 'records' then return pcfarm.put_records_right(batch);
        when 'signals' then return pcfarm.put_signals_right(batch);
        when 'files' then return pcfarm.put_files_right(batch);
        when 'tokens' then return pcfarm.put_tokens_right(batch);
    end case;
end $$;

-- For servers and administrators alone.
do $$
declare
    f record;
begin
    for f in
        select p.oid::regprocedure as signature
        from pg_proc p where p.pronamespace = 'pcfarm'::regnamespace
            and (p.proname in ('accept_clock', 'clock_is_behind', 'clock_is_proven', 'clock_is_watched', 'note_clock', 'time_limits_hold')
                or p.proname ~ '^put_\w+_right$')
    loop
        execute format('revoke all on routine %s from public', f.signature);
    end loop;
end $$;
