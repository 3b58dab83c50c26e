-- Alerts: who wants to be told of what, and what is still to be told. A job's end is written down by a trigger, in the
-- transaction that ends it, so that no alert is lost; servers deliver afterwards, at least once.

create table pcfarm.subscription (
    subscription_id bigint generated always as identity primary key,
    owner           name not null default pcfarm.acting_user(),
    -- This job alone, or jobs of this type; neither: jobs of any type.
    job_id          bigint,
    job_type        text references pcfarm.job_type on delete cascade,
    -- Everybody's jobs, and not its owner's alone.
    all_users       boolean not null default false,
    events          text[] not null constraint subscription_events
                    check (events <@ array['ended', 'failed', 'late', 'failures', 'digest', 'workstations'] and events <> '{}'),
    -- Of a job's problems, for 'failures'.
    failed_share    double precision constraint failed_share_range check (failed_share between 0 and 1),
    channel         text not null constraint subscription_channel check (channel in ('webhook', 'email', 'notify')),
    target          text not null,
    -- What may be slow or dead as one: a webhook's host, or all mail.
    place           text not null,
    -- Signs what is posted to a webhook.
    secret          text,
    digest_at       time,
    time_zone       text,
    next_digest_at  timestamptz,
    -- What the last digest had: what was visible then, and when that was.
    digested        pg_snapshot,
    digested_at     timestamptz,
    created_at      timestamptz not null default clock_timestamp(),
    constraint one_scope check (job_id is null or job_type is null),
    constraint secret_of_webhook check ((secret is not null) = (channel = 'webhook')),
    constraint share_of_failures check ((failed_share is not null) = ('failures' = any (events))),
    constraint digest_is_alone check (events = '{digest}' or 'digest' <> all (events)),
    constraint digest_has_its_time check (
        num_nonnulls(digest_at, time_zone, next_digest_at, digested, digested_at) = case when events = '{digest}' then 5 else 0 end)
);
create index subscription_of_job on pcfarm.subscription (job_id) where job_id is not null;
create index subscription_in_general on pcfarm.subscription (subscription_id) where job_id is null;
create index subscription_digest on pcfarm.subscription (next_digest_at) where next_digest_at is not null;

-- No foreign key: whoever ends a job must not wait for somebody who unsubscribes, nor fail because of it.
--
--   waiting --told--> delivered
--     ^ +---------------> given_up: a day is over, or the target will have no more
--     +----retry_alert-------+
create table pcfarm.alert (
    alert_id        bigint generated always as identity primary key,
    -- What receivers know it by, however often it comes: ids repeat after a restore.
    message_id      uuid not null default gen_random_uuid(),
    subscription_id bigint not null,
    job_id          bigint,
    what            text not null constraint alert_what
                    check (what in ('done', 'failed', 'cancelled', 'late', 'failures', 'digest', 'workstation_cloned',
                        'workstation_cannot_tell', 'workstation_without_work')),
    -- The day of a digest, in its time zone.
    digest_on       date,
    place           text not null,
    body            jsonb not null,
    created_at      timestamptz not null default clock_timestamp(),
    -- Since when it is being tried.
    begun_at        timestamptz not null default clock_timestamp(),
    attempts        integer not null default 0 constraint attempts_not_negative check (attempts >= 0),
    -- While somebody delivers it, when another may.
    next_attempt_at timestamptz default clock_timestamp(),
    delivered_at    timestamptz,
    given_up_at     timestamptz,
    -- Why it was not delivered yet.
    message         text not null default '',
    constraint waiting_delivered_or_given_up check (num_nonnulls(next_attempt_at, delivered_at, given_up_at) = 1),
    constraint delivered_by_an_attempt check (delivered_at is null or attempts > 0),
    constraint given_up_for_a_reason check (given_up_at is null or message <> ''),
    constraint digest_has_its_day check ((what = 'digest') = (digest_on is not null)),
    constraint of_a_job check ((what = 'digest' or what like 'workstation%') = (job_id is null))
);
create unique index alert_once on pcfarm.alert (subscription_id, job_id, what) where what in ('late', 'failures');
create unique index alert_once_a_day on pcfarm.alert (subscription_id, digest_on) where digest_on is not null;
create index alert_due on pcfarm.alert (place, next_attempt_at) where next_attempt_at is not null;
create index alert_of_subscription on pcfarm.alert (subscription_id, alert_id);
create index alert_by_time on pcfarm.alert (created_at);
create index alert_given_up on pcfarm.alert (given_up_at) where given_up_at is not null;

create index job_open_by_deadline on pcfarm.job (deadline) where ended_at is null and deadline is not null;

-- Subscribing -------------------------------------------------------------------------------------------------------

create function pcfarm.is_administrator()
returns boolean language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select pcfarm.is_server() and coalesce(current_setting('pcfarm.rights', true), '') <> 'own'
$$;
comment on function pcfarm.is_administrator is
    'Whether whoever asks may act as the owner of the schema, or is an operator whom a server acts for.';

create function pcfarm.wrong_subscription(problem text, advice text)
returns void language plpgsql immutable as $$
begin
    raise exception 'subscription: %', problem using errcode = 'invalid_parameter_value', hint = advice;
end $$;

create function pcfarm.only_for_administrators(what text)
returns void language plpgsql stable as $$
begin
    if not pcfarm.is_administrator() then
        raise exception 'subscription: % is for administrators', what
            using errcode = 'insufficient_privilege', hint = 'Those may have it who may act as the owner of schema pcfarm.';
    end if;
end $$;

-- Where to: a webhook, an address or a channel.
create function pcfarm.check_target(channel text, target text)
returns void language plpgsql immutable as $$
begin
    if channel = 'webhook' and (length(target) > 2000
        or target !~ E'^https?://([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?([/?#][!-~]*)?$') then
        -- It may have a password, which the log is not to have.
        perform pcfarm.wrong_subscription('what is given is no webhook',
            'It is like https://host.example/path, without a name or password before the host.');
    elsif channel = 'email' and (length(target) > 254
        or target !~ '^[A-Za-z0-9.!#$%&''*+/=?^_`{|}~-]+@[A-Za-z0-9.-]+$') then
        perform pcfarm.wrong_subscription(format('%L is no address of mail', target), 'One address, such as ops@example.org.');
    elsif channel = 'notify' and (target !~ '^[A-Za-z_][A-Za-z0-9_]{0,62}$' or lower(target) = 'pcfarm') then
        perform pcfarm.wrong_subscription(format('%L is no channel for you', target),
            'A name of letters, digits and _ to LISTEN to; pcfarm is the farm''s own.');
    end if;
end $$;

-- One that nobody can guess: 244 random bits.
create function pcfarm.new_secret()
returns text language sql volatile as $$
    select 'whsec_' || encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'base64')
$$;

-- The first moment after this one at which the clocks of the zone show this time. One that is left out when they are put
-- forward is an hour later that day; one that comes twice counts once.
create function pcfarm.next_digest(at time, time_zone text, after timestamptz)
returns timestamptz language sql stable as $$
    select min(m.moment)
    from generate_series(0, 2) d
    cross join lateral (
        select ((after at time zone time_zone)::date + d + at) at time zone time_zone as moment) m
    where m.moment > after
$$;

create function pcfarm.subscribe(options jsonb, out subscription bigint, out secret text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    known  constant text[] := array['events', 'job', 'job_type', 'all_users', 'failed_share', 'webhook', 'email', 'notify',
        'secret', 'at', 'time_zone'];
    s      pcfarm.subscription;
    unread text;
    holder pcfarm.job;
begin
    perform pcfarm.check_transaction();
    perform pcfarm.check_options(options, known, 'subscription');
    select array_agg(k) into s.events from unnest(pcfarm.texts_of(coalesce(options -> 'events', '["ended"]'), 'events')) k;
    select string_agg(quote_literal(e), ', ') into unread
    from unnest(s.events) e where e not in ('ended', 'failed', 'late', 'failures', 'digest', 'workstations');
    if unread is not null or s.events is null then
        perform pcfarm.wrong_subscription(coalesce('no such event: ' || unread, 'no event is named'),
            'Events are ended (in any way), failed (or cancelled), late, failures, digest and workstations.');
    end if;
    select min(o.key), min(o.value #>> '{}') into s.channel, s.target
    from jsonb_each(options) o where o.key in ('webhook', 'email', 'notify') having count(*) = 1;
    if s.target is null then
        perform pcfarm.wrong_subscription('one of webhook, email and notify says where to', 'Such as "email": "ops@example.org".');
    end if;
    perform pcfarm.check_target(s.channel, s.target);
    s.place := case s.channel when 'webhook' then lower(substring(s.target from '^https?://[^/?#]+')) else s.channel end;
    s.all_users := coalesce((options ->> 'all_users')::boolean, false);
    s.job_id := (options ->> 'job')::bigint;
    s.job_type := options ->> 'job_type';
    if s.events && '{digest}' then
        perform pcfarm.only_for_administrators('the digest');
        if cardinality(s.events) > 1 or options ?| array['job', 'job_type', 'all_users'] or s.channel = 'notify' then
            perform pcfarm.wrong_subscription('a digest is of the whole farm, mailed or posted, and a subscription of its own',
                'Name no other event, job or job type, and an address or a webhook.');
        end if;
        s.digest_at := coalesce(options ->> 'at', '07:00')::time;
        s.time_zone := coalesce(options ->> 'time_zone', current_setting('TimeZone'));
        if not exists (select from pg_timezone_names z where lower(z.name) = lower(s.time_zone)) then
            perform pcfarm.wrong_subscription(format('there is no time zone %L', s.time_zone),
                'Names are like Europe/Berlin; see pg_timezone_names.');
        end if;
        s.digested := pg_current_snapshot();
        s.digested_at := clock_timestamp();
        s.next_digest_at := pcfarm.next_digest(s.digest_at, s.time_zone, s.digested_at);
    elsif options ?| array['at', 'time_zone'] then
        perform pcfarm.wrong_subscription('at and time_zone are of a digest', 'Other alerts come when something happens.');
    end if;
    if s.events && '{workstations}' then
        perform pcfarm.only_for_administrators('what happens to workstations');
        if options ?| array['job', 'job_type'] then
            perform pcfarm.wrong_subscription('the event workstations is of no job', 'Name no job and no job type.');
        end if;
    end if;
    if s.events && '{failures}' then
        s.failed_share := coalesce((options ->> 'failed_share')::double precision, 0);
        if s.failed_share not between 0 and 1 then
            perform pcfarm.wrong_subscription(format('a failed_share of %s', s.failed_share),
                'From 0, for the first problem that fails, to 1, for all.');
        end if;
    elsif options ? 'failed_share' then
        perform pcfarm.wrong_subscription('failed_share is of the event failures', 'Name it in events.');
    end if;
    if s.all_users then
        perform pcfarm.only_for_administrators('what is of all users');
    end if;
    if s.job_id is not null then
        if s.job_type is not null or s.all_users then
            perform pcfarm.wrong_subscription('it is of one job, or of all of a type, or of all users', 'Name one of these.');
        end if;
        -- Who ends it waits for this, or this for its end.
        select j.* into holder from pcfarm.job j where j.job_id = s.job_id and pcfarm.sees(j.owner) for share;
        if not found then
            perform pcfarm.no_such_job(s.job_id);
        elsif holder.owner <> pcfarm.acting_user() then
            perform pcfarm.only_for_administrators(format('job %s of %s', s.job_id, holder.owner));
        end if;
        if holder.ended_at is not null then
            raise exception 'job % has ended (%)', s.job_id, holder.state
                using errcode = 'object_not_in_prerequisite_state', hint = 'There is nothing more to tell of it.';
        end if;
    elsif s.job_type is not null then
        perform pcfarm.job_type_must_exist(s.job_type);
    end if;
    if s.channel = 'webhook' then
        s.secret := coalesce(options ->> 'secret', pcfarm.new_secret());
        if s.secret !~ '^whsec_[A-Za-z0-9+/]{32,86}={0,2}$' or length(s.secret) % 4 <> 2 then
            perform pcfarm.wrong_subscription('its secret is none', 'It is whsec_ and the base64 of 24 to 64 bytes, or let it be made.');
        end if;
    elsif options ? 'secret' then
        perform pcfarm.wrong_subscription('a secret is of a webhook', 'Nothing else is signed.');
    end if;
    perform pcfarm.check_room_for_subscription(s.job_id);
    insert into pcfarm.subscription as n (job_id, job_type, all_users, events, failed_share, channel, target, place, secret,
        digest_at, time_zone, next_digest_at, digested, digested_at)
    values (s.job_id, s.job_type, s.all_users, s.events, s.failed_share, s.channel, s.target, s.place, s.secret,
        s.digest_at, s.time_zone, s.next_digest_at, s.digested, s.digested_at)
    returning n.subscription_id, n.secret into subscription, secret;
end $$;
comment on function pcfarm.subscribe is
    'Asks to be told: events (ended, failed, late, failures, digest, workstations), of one job, of a job_type, or of all of one''s jobs '
    '(all_users: everybody''s); failed_share, for failures; webhook, email or notify (where to); secret, of a webhook (returned '
    'once); at and time_zone, of a digest.';

-- What everybody asks for is looked at for every job that ends.
create function pcfarm.check_room_for_subscription(job bigint)
returns void language plpgsql as $$
begin
    if job is null and (
            select count(*) >= 100 from pcfarm.subscription s where s.job_id is null and s.owner = pcfarm.acting_user())
        or job is not null and (
            select count(*) >= 10 from pcfarm.subscription s where s.job_id = job and s.owner = pcfarm.acting_user())
    then
        raise exception 'subscription: % has enough of them already', pcfarm.acting_user()
            using errcode = 'configuration_limit_exceeded',
                  hint = 'A user has at most 100, and 10 to a job; pcfarm.unsubscribe(id) removes one.';
    end if;
end $$;

-- The alerts that a job is created with.
create function pcfarm.subscribe_to_job(job bigint, alerts jsonb)
returns void language plpgsql as $$
declare
    one jsonb;
begin
    if jsonb_typeof(alerts) <> 'array' then
        perform pcfarm.wrong_subscription('alerts is a list', 'It is like [{"events": ["failed"], "email": "ops@example.org"}].');
    end if;
    for one in select e from jsonb_array_elements(alerts) e loop
        perform pcfarm.check_options(one, array['events', 'failed_share', 'webhook', 'email', 'notify', 'secret'], 'alert of a job');
        if one ? 'webhook' and not one ? 'secret' then
            perform pcfarm.wrong_subscription('a webhook that a job is created with needs its secret',
                'Nobody would be shown one that is made: name it, or use pcfarm.subscribe.');
        end if;
        perform pcfarm.subscribe(one || jsonb_build_object('job', job));
    end loop;
end $$;

create function pcfarm.unsubscribe(subscription bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pcfarm.check_transaction();
    delete from pcfarm.subscription s
    where s.subscription_id = subscription and (s.owner = pcfarm.acting_user() or pcfarm.is_administrator());
    if not found then
        raise exception 'there is no subscription %', coalesce(subscription::text, 'null')
            using errcode = 'no_data_found', hint = 'See pcfarm.subscription_status.';
    end if;
    delete from pcfarm.alert a where a.subscription_id = subscription;
end $$;
comment on function pcfarm.unsubscribe is 'Tells no more; what was not delivered yet is not.';

create function pcfarm.retry_alert(alert bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_alert pcfarm.alert;
begin
    perform pcfarm.check_transaction();
    select a.* into found_alert from pcfarm.alert a
    join pcfarm.subscription s on s.subscription_id = a.subscription_id
    where a.alert_id = alert and (s.owner = pcfarm.acting_user() or pcfarm.is_administrator())
    for update of a;
    if not found then
        raise exception 'there is no alert %', coalesce(alert::text, 'null')
            using errcode = 'no_data_found', hint = 'See pcfarm.alert_status.';
    elsif found_alert.delivered_at is not null then
        raise exception 'alert % was delivered', alert
            using errcode = 'object_not_in_prerequisite_state', hint = 'Only what was not delivered can be tried again.';
    end if;
    update pcfarm.alert a set attempts = 0, begun_at = clock_timestamp(), next_attempt_at = clock_timestamp(),
        given_up_at = null, message = ''
    where a.alert_id = alert;
    perform pg_notify('pcfarm', 'alert');
end $$;
comment on function pcfarm.retry_alert is 'Tries an alert that was not delivered again, at once and for another day.';

create function pcfarm.note_subscription()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s pcfarm.subscription := case when tg_op = 'DELETE' then old else new end;
begin
    -- Neither the target, which may be a secret itself, nor the secret.
    insert into pcfarm.event (what, subject, details)
    values ('subscription ' || case tg_op when 'INSERT' then 'made' else 'removed' end, s.subscription_id::text,
        jsonb_strip_nulls(jsonb_build_object('owner', s.owner, 'channel', s.channel, 'events', s.events, 'job_type', s.job_type,
            'all_users', nullif(s.all_users, false))));
    return null;
end $$;
-- Those of one job come and go with it.
create trigger note_made after insert on pcfarm.subscription for each row
    when (new.job_id is null) execute function pcfarm.note_subscription();
create trigger note_removed after delete on pcfarm.subscription for each row
    when (old.job_id is null) execute function pcfarm.note_subscription();

create function pcfarm.note_given_up()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.event (what, job_id, subject, details)
    values ('alert given up', new.job_id, new.alert_id::text,
        jsonb_build_object('subscription_id', new.subscription_id, 'what', new.what, 'attempts', new.attempts));
    return null;
end $$;
create trigger note_given_up after update on pcfarm.alert for each row
    when (new.given_up_at is not null and old.given_up_at is null) execute function pcfarm.note_given_up();

-- What there is to tell ---------------------------------------------------------------------------------------------

create function pcfarm.interested_in(j pcfarm.job)
returns setof pcfarm.subscription language sql stable as $$
    select s.* from pcfarm.subscription s where s.job_id = j.job_id
    union all
    select s.* from pcfarm.subscription s
    where s.job_id is null and s.next_digest_at is null and (s.all_users or s.owner = j.owner)
        and coalesce(s.job_type, j.job_type) = j.job_type
$$;

create function pcfarm.counts_of(job bigint, out problems bigint, out done bigint, out failed bigint)
language sql stable as $$
    select (select coalesce(sum(l.problems), 0)::bigint from pcfarm.lane l where l.job_id = counts_of.job),
        coalesce(sum(p.done), 0)::bigint, coalesce(sum(p.failed), 0)::bigint
    from pcfarm.progress p where p.job_id = counts_of.job
$$;

-- What is to be told of a job as it is, and to whom. What is told once is not said again.
create function pcfarm.news_of(j pcfarm.job)
returns table (subscription_id bigint, place text, what text, failed_share double precision) language sql stable as $$
    select s.subscription_id, s.place, w.what, case when w.what = 'failures' then s.failed_share end
    from pcfarm.interested_in(j) s
    cross join pcfarm.counts_of(j.job_id) n
    cross join lateral (
        select j.state where j.ended_at is not null
            and ('ended' = any (s.events) or ('failed' = any (s.events) and j.state <> 'done'))
        union all
        select 'late' where 'late' = any (s.events) and j.deadline < coalesce(j.ended_at, now())
        union all
        select 'failures' where 'failures' = any (s.events) and n.failed >= greatest(1, s.failed_share * n.problems)) w(what)
    where w.what not in ('late', 'failures') or not exists (
        select from pcfarm.alert a
        where a.subscription_id = s.subscription_id and a.job_id = j.job_id and a.what = w.what)
$$;

-- Writes that down. Repeating it tells nothing twice, but that the job has ended.
create function pcfarm.tell_of(j pcfarm.job)
returns void language plpgsql as $$
begin
    insert into pcfarm.alert (subscription_id, job_id, what, place, body)
    select w.subscription_id, j.job_id, w.what, w.place, jsonb_build_object('job_id', j.job_id::text, 'name', j.name,
        'title', j.title, 'job_type', j.job_type, 'owner', j.owner, 'state', j.state, 'problems', n.problems, 'done', n.done,
        'failed', n.failed, 'deadline', j.deadline, 'created_at', j.created_at, 'opened_at', j.opened_at,
        'ended_at', j.ended_at, 'failed_share', w.failed_share)
    from pcfarm.news_of(j) w
    cross join pcfarm.counts_of(j.job_id) n
    order by w.subscription_id, w.what
    on conflict do nothing;
    if found then
        perform pg_notify('pcfarm', 'alert');
    end if;
end $$;

create function pcfarm.tell_of_end()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if exists (select from pcfarm.interested_in(new)) then
        perform pcfarm.tell_of(new);
    end if;
    return null;
end $$;
create trigger tell_of_end after update on pcfarm.job for each row
    when (new.ended_at is not null and old.ended_at is null) execute function pcfarm.tell_of_end();

-- What no statement brings about: deadlines that pass, and shares of failed problems that are reached. Looks at jobs whose
-- deadline has just passed, and at some of all that have not ended, from one id on, so that it takes about as long however
-- many there are; returns where to go on, 0: from the start. A job that somebody is about to end or change is left to the
-- end's own trigger, or to the next time, so that nobody waits for another.
create function pcfarm.sweep_alerts(after_job bigint default 0, batch integer default 200)
returns bigint language plpgsql as $$
declare
    part bigint[];
    late bigint[];
    j    pcfarm.job;
begin
    if not exists (select from pcfarm.subscription s where s.events && '{late,failures}') then
        return 0;
    end if;
    part := array(
        select o.job_id from pcfarm.job o where o.ended_at is null and o.job_id > after_job order by o.job_id limit batch);
    late := array(
        select o.job_id from pcfarm.job o
        where o.ended_at is null and o.deadline between now() - interval '5 minutes' and now() order by o.deadline limit batch);
    for j in
        select o.* from pcfarm.job o
        where o.job_id = any (part || late) and o.ended_at is null and exists (select from pcfarm.news_of(o))
        order by o.job_id
        for share of o skip locked
    loop
        perform pcfarm.tell_of(j);
    end loop;
    return case when cardinality(part) = batch then part[batch] else 0 end;
end $$;

-- Writes an alert for each subscription to workstations. `about` is the subject: of one subject and kind there is one alert a
-- day, so that two hundred copies of an image are one message. An alert of a clock that was ahead holds none back.
create function pcfarm.tell_of_workstations(what text, about text, body jsonb)
returns void language plpgsql as $$
begin
    insert into pcfarm.alert (subscription_id, what, place, body)
    select s.subscription_id, tell_of_workstations.what, s.place, body || jsonb_build_object('about', about)
    from pcfarm.subscription s
    where s.job_id is null and 'workstations' = any (s.events) and not exists (
        select from pcfarm.alert a
        where a.subscription_id = s.subscription_id and a.what = tell_of_workstations.what and a.body ->> 'about' = about
            and a.created_at > clock_timestamp() - interval '1 day' and a.created_at <= clock_timestamp())
    order by s.subscription_id;
    if found then
        perform pg_notify('pcfarm', 'alert');
    end if;
end $$;

-- Digests -----------------------------------------------------------------------------------------------------------

-- What happened since a snapshot: ids may be committed out of order, and whoever goes on by snapshots misses nothing. One
-- that is newer than this database is of another, of which this is a copy: then by time.
create function pcfarm.events_since(seen pg_snapshot, seen_at timestamptz)
returns setof pcfarm.event language plpgsql stable as $$
begin
    if pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot()) then
        return query select e.* from pcfarm.event e where e.happened_at >= seen_at;
    else
        return query select e.* from pcfarm.event e
            where e.transaction_id >= pg_snapshot_xmin(seen) and not pg_visible_in_snapshot(e.transaction_id, seen)
                and pg_visible_in_snapshot(e.transaction_id, pg_current_snapshot());
    end if;
end $$;

create function pcfarm.digest_since(seen pg_snapshot, seen_at timestamptz)
returns jsonb language sql stable as $$
    with event as materialized (select * from pcfarm.events_since(seen, seen_at)),
    ended as materialized (
        -- A job that was retried ended more than once: as it did last.
        select distinct on (e.job_id) e.job_id, substr(e.what, 5) as outcome, j.deadline < e.happened_at as late, j.name,
            coalesce(j.job_type, '(removed)') as job_type, n.done, n.failed
        from event e
        left join pcfarm.job j on j.job_id = e.job_id
        cross join lateral pcfarm.counts_of(e.job_id) n
        where e.what in ('job done', 'job failed', 'job cancelled')
        order by e.job_id, e.event_id desc),
    late as (
        select e.job_id, e.name, e.outcome from ended e where e.late
        union all
        select j.job_id, j.name, j.state from pcfarm.job j
        where j.ended_at is null and j.deadline < now() and j.deadline >= seen_at),
    setting as (
        select e.who, e.what, count(*) as times, (array_agg(distinct left(e.subject, 100)) filter (where e.subject <> ''))[1:5] as subjects
        from event e where e.what ~ '( made| changed| removed)$' or e.what in ('load parked', 'load unparked')
        group by e.who, e.what)
    select jsonb_build_object('since', seen_at, 'until', clock_timestamp(),
        'jobs', (
            select coalesce(jsonb_agg(to_jsonb(t) order by t.job_type), '[]') from (
                select e.job_type, count(*) filter (where e.outcome = 'done') as done,
                    count(*) filter (where e.outcome = 'failed') as failed,
                    count(*) filter (where e.outcome = 'cancelled') as cancelled,
                    sum(e.done) as problems_done, sum(e.failed) as problems_failed
                from ended e group by e.job_type order by count(*) desc limit 100) t),
        'late', (select count(*) from late),
        'late_jobs', (
            select coalesce(jsonb_agg(to_jsonb(t)), '[]') from (
                select l.job_id::text as job_id, l.name, l.outcome as state from late l order by l.job_id limit 10) t),
        'workstations_cloned', (select count(*) from event e where e.what = 'workstation cloned'),
        'workstations_cannot_tell', (
            select count(*) from pcfarm.workstation w where w.state = 'suspended' and w.idle_source = 'none'
                and not w.disconnected),
        'workstations_without_work', (
            select count(*) from pcfarm.workstation_record r join pcfarm.workstation w using (workstation_id)
            where r.told and w.state not in ('offline', 'dead')),
        'workstations_died', (select count(*) from event e where e.what = 'workstation dead'),
        'workstations_back', (select count(*) from event e where e.what = 'workstation back'),
        'workstations_dead', (select count(*) from pcfarm.workstation w where w.state = 'dead'),
        'dead', (
            select coalesce(jsonb_agg(t.hostname), '[]') from (
                select w.hostname from pcfarm.workstation w where w.state = 'dead' order by w.since desc limit 10) t),
        'settings', (
            select coalesce(jsonb_agg(to_jsonb(t)), '[]') from (
                select s.who, s.what, s.times, coalesce(s.subjects, '{}') as subjects from setting s
                order by s.who, s.what limit 30) t),
        'alerts_given_up', (select count(*) from pcfarm.alert a where a.given_up_at >= seen_at),
        'alerts_waiting', (select count(*) from pcfarm.alert a where a.next_attempt_at is not null and a.message <> ''))
$$;

-- Writes the digests that are due, one each however many were missed. The subscription's row is locked: nobody else does.
create function pcfarm.make_digests(batch integer default 5)
returns bigint language plpgsql as $$
declare
    s     pcfarm.subscription;
    -- What it has: taken by the statement that looks, so that the next one begins where it ends.
    taken pg_snapshot;
    body  jsonb;
    made  bigint := 0;
begin
    for s in
        select o.* from pcfarm.subscription o where o.next_digest_at <= now()
        order by o.next_digest_at limit batch for update skip locked
    loop
        select pg_current_snapshot(), pcfarm.digest_since(s.digested, s.digested_at) into taken, body;
        insert into pcfarm.alert (subscription_id, what, digest_on, place, body)
        values (s.subscription_id, 'digest', (s.next_digest_at at time zone s.time_zone)::date, s.place, body)
        on conflict do nothing;
        made := made + 1;
        update pcfarm.subscription o set digested = taken, digested_at = (body ->> 'until')::timestamptz,
            next_digest_at = pcfarm.next_digest(o.digest_at, o.time_zone, clock_timestamp())
        where o.subscription_id = s.subscription_id;
    end loop;
    return made;
end $$;

-- What was delivered, or given up, a month ago is forgotten; so are subscriptions to jobs that are not there any more, once
-- everything was told, and alerts of those who have unsubscribed meanwhile. That a job is late or has failures is
-- remembered until it has ended. Returns how many rows are gone.
create function pcfarm.forget_alerts(batch integer default 1000)
returns bigint language plpgsql as $$
declare
    alerts bigint;
    others bigint;
begin
    if not pcfarm.clock_is_proven() then
        return 0;
    end if;
    delete from pcfarm.alert a where a.ctid = any (array(
        select o.ctid from pcfarm.alert o
        where o.created_at < now() - interval '30 days'
            and (o.next_attempt_at is null or not exists (
                select from pcfarm.subscription s where s.subscription_id = o.subscription_id))
            and not exists (select from pcfarm.job j where j.job_id = o.job_id and j.ended_at is null)
        order by o.created_at limit batch));
    get diagnostics alerts = row_count;
    delete from pcfarm.subscription s where s.ctid = any (array(
        select o.ctid from pcfarm.subscription o
        where o.job_id is not null and not exists (select from pcfarm.job j where j.job_id = o.job_id)
            and not exists (select from pcfarm.alert a where a.subscription_id = o.subscription_id)
        limit batch));
    get diagnostics others = row_count;
    return alerts + others;
end $$;
