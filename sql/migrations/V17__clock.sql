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
    if not pcfarm.is_administrator() then
        raise exception 'accepting the clock is for administrators'
            using errcode = 'insufficient_privilege', hint = 'Those may have it who may act as the owner of schema pcfarm.';
    end if;
    update pcfarm.clock c set unproven_since = null, step_until = null, difference_until = null, stored_until = null,
        tolerated_seconds = abs(coalesce(c.difference_seconds, 0)) + 60, accepted_newest = greatest(c.accepted_newest, c.newest),
        accepted_by = pcfarm.acting_user(), accepted_at = clock_timestamp();
end $$;
comment on function pcfarm.accept_clock is
    'Says that the database''s clock is right: what is old is removed again. Look at `select now()` first.';

-- Putting right -----------------------------------------------------------------------------------------------------------

-- Times that were computed by a clock that was ahead, and for which the farm would wait: each is computed again from now. The
-- rule for each: no stored start lies in the future, and no wait is longer than the longest that its statement gives. Schedules
-- are put right by the ticker, which knows their recurrences. Times that say what happened stay as they were written. Returns
-- how many rows were changed.
create function pcfarm.put_clock_right()
returns bigint language plpgsql set enable_nestloop = on set jit = off as $$
declare
    soon    timestamptz := clock_timestamp() + interval '1 second';
    changed bigint := 0;
    rows    bigint;
begin
    -- Checkouts: a full time limit from now.
    update pcfarm.checkout c set checked_out_at = clock_timestamp(), deadline = clock_timestamp() + (c.deadline - c.checked_out_at)
    where c.ended_at is null and c.deadline is not null and c.deadline > soon and c.checked_out_at > soon;
    get diagnostics rows = row_count;
    changed := changed + rows;
    -- Failed problems between attempts: no longer than the longest delay of their job type. Problems that were loaded with a time
    -- of their own have no message, and keep it.
    update pcfarm.delayed d set due_at = clock_timestamp() + o.longest
    from (
        select o.job_id, o.problem_id, t.retry_delay_limit * 1.25 as longest
        from pcfarm.delayed o
        cross join lateral (
            select l.job_type from pcfarm.lane l where l.job_id = o.job_id and l.lane_id = o.home_lane offset 0) l
        cross join lateral (select t.retry_delay_limit from pcfarm.job_type t where t.name = l.job_type offset 0) t
        where o.due_at > soon and o.message is not null and o.due_at > soon + t.retry_delay_limit * 1.25
        order by o.due_at desc limit 10000) o
    where d.job_id = o.job_id and d.problem_id = o.problem_id;
    get diagnostics rows = row_count;
    changed := changed + rows;
    -- Back-off of loads, submissions, alerts and wake-ups.
    update pcfarm.schedule_load l set next_attempt_at = clock_timestamp()
    where l.loaded_at is null and l.next_attempt_at > soon + greatest(l.time_limit + interval '1 minute', interval '10 minutes');
    get diagnostics rows = row_count;
    changed := changed + rows;
    update pcfarm.submission s set next_attempt_at = clock_timestamp()
    where s.state = 'stored' and s.next_attempt_at > soon + interval '10 minutes';
    get diagnostics rows = row_count;
    changed := changed + rows;
    update pcfarm.alert a set next_attempt_at = clock_timestamp()
    where a.next_attempt_at > soon + interval '75 minutes';
    get diagnostics rows = row_count;
    changed := changed + rows;
    update pcfarm.wake w set next_try_at = clock_timestamp() where w.next_try_at > soon + interval '30 seconds';
    get diagnostics rows = row_count;
    changed := changed + rows;
    -- Digests come daily.
    update pcfarm.subscription s set digested_at = least(s.digested_at, clock_timestamp()),
        next_digest_at = pcfarm.next_digest(s.digest_at, s.time_zone, clock_timestamp())
    where s.next_digest_at > soon + interval '2 days';
    get diagnostics rows = row_count;
    changed := changed + rows;
    -- Pauses between wake-ups, and drains with a time limit.
    update pcfarm.workstation w set woken_at = least(w.woken_at, clock_timestamp()),
        drain_deadline = case when w.drained_since > soon then clock_timestamp() + (w.drain_deadline - w.drained_since)
            else w.drain_deadline end,
        drained_since = least(w.drained_since, clock_timestamp())
    where w.woken_at > soon or w.drained_since > soon;
    get diagnostics rows = row_count;
    changed := changed + rows;
    -- Ages of unfinished uploads and of files, which otherwise stay for as long as the clock was ahead.
    update pcfarm.submission s set touched_at = clock_timestamp() where s.state = 'receiving' and s.touched_at > soon;
    get diagnostics rows = row_count;
    changed := changed + rows;
    update pcfarm.file f set touched_at = clock_timestamp() where f.touched_at > soon and f.touched_at < 'infinity';
    get diagnostics rows = row_count;
    return changed + rows;
end $$;

-- For servers and administrators alone.
do $$
declare
    f record;
begin
    for f in
        select p.oid::regprocedure as signature
        from pg_proc p where p.pronamespace = 'pcfarm'::regnamespace
            and p.proname in ('accept_clock', 'clock_is_proven', 'clock_is_watched', 'note_clock', 'put_clock_right', 'time_limits_hold')
    loop
        execute format('revoke all on routine %s from public', f.signature);
    end loop;
end $$;
