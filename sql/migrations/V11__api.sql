-- What the API needs of its own: requests that are done once, changes that are not lost, submissions that are stored before
-- they are acknowledged, and what each user has used.

-- Requests with an Idempotency-Key ----------------------------------------------------------------------------------------

create table pcfarm.request (
    owner       text not null,
    key         text not null constraint request_key_length check (length(key) between 1 and 200),
    -- Of method, address and body.
    digest      bytea not null,
    -- Who does it. If that server is gone before it has answered, whoever asks again does it anew.
    server_id   bigint not null,
    begun_at    timestamptz not null default clock_timestamp(),
    status      integer constraint request_status check (status between 100 and 599),
    media       text,
    location    text,
    etag        text,
    body        bytea,
    answered_at timestamptz,
    primary key (owner, key),
    constraint answered_when_answered check ((answered_at is null) = (status is null) and (status is null) = (body is null))
);
create index request_by_time on pcfarm.request (begun_at);

create function pcfarm.claim_request(
    owner text, key text, digest bytea, server bigint,
    out outcome text, out status integer, out media text, out location text, out etag text, out body bytea)
language plpgsql as $$
declare
    found_one pcfarm.request;
begin
    loop
        insert into pcfarm.request (owner, key, digest, server_id)
        values (claim_request.owner, claim_request.key, claim_request.digest, claim_request.server)
        on conflict do nothing;
        if found then
            outcome := 'new';
            return;
        end if;
        select r.* into found_one from pcfarm.request r
        where r.owner = claim_request.owner and r.key = claim_request.key for update;
        -- It may have been released in between.
        exit when found;
    end loop;
    if found_one.digest <> claim_request.digest then
        outcome := 'different';
    elsif found_one.answered_at is not null then
        select 'answered', found_one.status, found_one.media, found_one.location, found_one.etag, found_one.body
        into outcome, status, media, location, etag, body;
    elsif exists (
        select from pcfarm.server s
        where s.server_id = found_one.server_id and s.stopped_at is null
            and s.heard_at > clock_timestamp() - interval '30 seconds')
    then
        outcome := 'running';
    else
        update pcfarm.request r set server_id = claim_request.server, begun_at = clock_timestamp()
        where r.owner = claim_request.owner and r.key = claim_request.key;
        outcome := 'new';
    end if;
end $$;

-- Changes that are meant for one version ----------------------------------------------------------------------------------

-- Of what people may change of a job, not of its counts.
create function pcfarm.job_version(job bigint)
returns text language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select md5(jsonb_build_array(j.title, j.priority, j.deadline, i.info, j.requirement)::text)
    from pcfarm.job j left join pcfarm.job_info i on i.job_id = j.job_id
    where j.job_id = job
$$;
comment on function pcfarm.job_version is 'Changes when somebody changes what a job is: its title, priority, deadline, requirement or info.';

create function pcfarm.update_job(job bigint, version text, options jsonb)
returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    locked pcfarm.job := pcfarm.lock_job(job);
begin
    perform pcfarm.check_transaction();
    if version <> '' and pcfarm.job_version(job) is distinct from version then
        return false;
    end if;
    if options ?| array['priority', 'deadline', 'require'] and locked.ended_at is not null then
        perform pcfarm.wrong_state(locked, 'changed', 'It has ended; its title and info can be changed.');
    end if;
    if options ?| array['title', 'priority', 'deadline', 'require'] then
        update pcfarm.job j set
            title = coalesce(options ->> 'title', j.title),
            priority = coalesce((options ->> 'priority')::integer, j.priority),
            deadline = case when options ? 'deadline' then (options ->> 'deadline')::timestamptz else j.deadline end,
            requirement = case when options ? 'require' then pcfarm.requirement(options -> 'require') else j.requirement end
        where j.job_id = job;
        insert into pcfarm.event (what, job_id, subject, details) values ('job changed', job, locked.name, options - 'info');
    end if;
    if options ? 'info' then
        perform pcfarm.set_info(job, options -> 'info');
    end if;
    perform pg_notify('pcfarm', 'work');
    return true;
end $$;
comment on function pcfarm.update_job is
    'Changes title, priority, deadline, require and info of a job. False: it is another version by now (pcfarm.job_version), and '
    'nothing was done; an empty version is any.';

-- Submissions -------------------------------------------------------------------------------------------------------------
--
-- An upload is stored, with its hash, before it is acknowledged; a sweeper loads what is stored into jobs.
--
--   receiving --all of it is here--> stored --loaded, in the load's own transaction--> queued
--                                      +--it can never be loaded--> refused

create table pcfarm.intake (
    singleton     boolean primary key default true constraint one_intake check (singleton),
    -- Since when what is stored is not loaded.
    paused_since  timestamptz,
    paused_reason text not null default '',
    -- Uploads are kept this long after they were stored.
    keep          interval not null default '30 days' constraint keep_not_negative check (keep >= interval '0'),
    -- Most that a user may have stored and not yet loaded.
    most_stored   integer not null default 1000 constraint most_stored_not_negative check (most_stored >= 0)
);
insert into pcfarm.intake default values;

create table pcfarm.submission (
    submission_id   bigint generated always as identity primary key,
    owner           name not null default pcfarm.acting_user(),
    -- What was asked for: of a new job its name, job_type, options and convoy, or a job_id; how problems are read from it.
    asked           jsonb not null,
    content_type    text not null,
    state           text not null default 'receiving' constraint submission_state
                    check (state in ('receiving', 'stored', 'queued', 'refused')),
    -- Where the upload is: in submission_piece, in a directory of the servers, or in a store that speaks S3.
    kept_in         text not null constraint submission_kept_in check (kept_in in ('database', 'directory', 's3')),
    bytes           bigint,
    sha256          bytea,
    job_id          bigint,
    problems        bigint,
    -- Why it was refused, or is not loaded yet.
    message         text not null default '',
    -- Of several small ones none waits for a large one.
    is_large        boolean generated always as (bytes > 8388608) stored,
    -- The server that loads it, until next_attempt_at, which that server moves on while it is at it. Whoever comes then makes
    -- another attempt: what the one before says under its number is not heard any more.
    claimed_by      bigint,
    attempts        integer not null default 0,
    next_attempt_at timestamptz not null default clock_timestamp(),
    created_at      timestamptz not null default clock_timestamp(),
    touched_at      timestamptz not null default clock_timestamp(),
    stored_at       timestamptz,
    ended_at        timestamptz,
    -- Of those that were acknowledged a user has one with each key.
    idempotency_key text,
    -- The upload is gone, the row is not.
    removed_at      timestamptz,
    constraint stored_with_its_hash check ((state = 'receiving') = (sha256 is null) and (sha256 is null) = (bytes is null)
        and (sha256 is null) = (stored_at is null)),
    constraint queued_into_a_job check ((state = 'queued') = (job_id is not null and problems is not null)),
    constraint submission_ended check ((state in ('queued', 'refused')) = (ended_at is not null)),
    constraint claimed_to_be_loaded check (claimed_by is null or state = 'stored')
);
create index submission_to_load on pcfarm.submission (owner, is_large, next_attempt_at, submission_id) where state = 'stored';
create index submission_claimed on pcfarm.submission (owner) where claimed_by is not null;
create index submission_unfinished on pcfarm.submission (touched_at) where state = 'receiving';
create unique index submission_idempotency on pcfarm.submission (owner, idempotency_key)
    where idempotency_key is not null and state <> 'receiving';
create index submission_by_owner on pcfarm.submission (owner, submission_id);
create index submission_to_remove on pcfarm.submission (stored_at) where removed_at is null and state in ('queued', 'refused');

create table pcfarm.submission_piece (
    submission_id bigint not null,
    number        integer not null,
    content       bytea not null,
    primary key (submission_id, number)
);
-- What is uploaded is often packed already.
alter table pcfarm.submission_piece alter column content set storage external;

create function pcfarm.begin_submission(asked jsonb, content_type text, kept_in text, idempotency_key text)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    made   bigint;
    most   integer := (select i.most_stored from pcfarm.intake i);
    stored bigint;
begin
    if asked ->> 'job_type' is not null then
        perform pcfarm.job_type_must_exist(asked ->> 'job_type');
    elsif not exists (select from pcfarm.job j where j.job_id = (asked ->> 'job_id')::bigint and pcfarm.sees(j.owner)) then
        perform pcfarm.no_such_job((asked ->> 'job_id')::bigint);
    end if;
    select count(*) into stored from (
        select from pcfarm.submission s where s.owner = pcfarm.acting_user() and s.state = 'stored' limit most) s;
    if stored >= most then
        raise exception '% has % submissions that are not loaded yet', pcfarm.acting_user(), stored
            using errcode = 'configuration_limit_exceeded',
                  hint = 'Wait until some are loaded. An administrator sets most_stored in pcfarm.intake.';
    end if;
    insert into pcfarm.submission as s (asked, content_type, kept_in, idempotency_key)
    values (begin_submission.asked, begin_submission.content_type, begin_submission.kept_in, begin_submission.idempotency_key)
    returning submission_id into made;
    return made;
end $$;

-- In the transaction that has loaded it. Whose attempt is not the last one finds that, and rolls back.
create function pcfarm.submission_is_loaded(submission bigint, attempt integer, job bigint, problems bigint)
returns void language plpgsql as $$
begin
    update pcfarm.submission s set state = 'queued', job_id = job, problems = submission_is_loaded.problems, message = '',
        claimed_by = null, ended_at = clock_timestamp()
    where s.submission_id = submission and s.attempts = attempt and s.state = 'stored';
    if not found then
        raise exception 'submission % is loaded by somebody else', submission using errcode = 'serialization_failure';
    end if;
end $$;

-- Usage -------------------------------------------------------------------------------------------------------------------

-- Time in controllers, summed over cores, as agents say with their results.
alter table pcfarm.progress add column busy_seconds double precision not null default 0;
alter table pcfarm.statistic add column busy_seconds double precision not null default 0;
-- A quota of CPU seconds sums up one user's month.
create index statistic_by_owner on pcfarm.statistic (owner, hour) include (busy_seconds);

create view pcfarm.usage as
select (u.hour at time zone 'UTC')::date as day, u.owner, sum(u.done)::bigint as done, sum(u.failed)::bigint as failed,
    sum(u.requeued)::bigint as requeued, sum(u.busy_seconds) as cpu_seconds, sum(u.triggers)::bigint as triggers
from (
    select s.hour, s.owner, s.done, s.failed, s.requeued, s.busy_seconds, 0::bigint as triggers from pcfarm.statistic s
    union all
    select t.hour, t.owner, 0, 0, 0, 0, t.triggers from pcfarm.trigger_statistic t
    union all
    select c.triggered_at, c.owner, 0, 0, 0, 0, c.triggers from pcfarm.trigger_count c) u
group by 1, 2;
comment on view pcfarm.usage is
    'What each user has had done, and how often schedules of its own enqueued something, by day in UTC.';

-- What a user may load in a day or a month (UTC). Only who has one is counted, under a row of its own.
create table pcfarm.quota (
    owner       name not null,
    period      text not null constraint quota_period check (period in ('day', 'month')),
    problems    bigint constraint quota_problems check (problems >= 0),
    cpu_seconds double precision constraint quota_cpu_seconds check (cpu_seconds >= 0 and cpu_seconds < 'infinity'),
    primary key (owner, period),
    constraint quota_of_something check (problems is not null or cpu_seconds is not null)
);
create table pcfarm.quota_used (
    owner    name not null,
    period   text not null,
    since    timestamptz not null,
    problems bigint not null,
    primary key (owner, period, since)
);

-- Before anything is counted: for whoever loads for many users at once.
create function pcfarm.refuse_over_quota(owner name, problems bigint)
returns void language plpgsql as $$
declare
    quota   pcfarm.quota;
    start   timestamptz;
    used    bigint;
    seconds double precision;
begin
    for quota in select q.* from pcfarm.quota q where q.owner = refuse_over_quota.owner order by q.period loop
        start := date_trunc(quota.period, clock_timestamp(), 'UTC');
        select refuse_over_quota.problems + coalesce(sum(u.problems), 0) into used from pcfarm.quota_used u
        where u.owner = quota.owner and u.period = quota.period and u.since = start;
        if used > quota.problems then
            raise exception 'user % would have loaded % problems in this %, and the quota is %', quota.owner, used, quota.period,
                    quota.problems
                using errcode = 'configuration_limit_exceeded',
                      hint = 'Wait for the next ' || quota.period || ' (UTC), or ask an administrator for more.';
        end if;
        if quota.cpu_seconds is not null then
            select coalesce(sum(s.busy_seconds), 0) into seconds from pcfarm.statistic s
            -- Hours in the future are of a clock that was ahead.
            where s.hour >= start and s.hour <= clock_timestamp() and s.owner = quota.owner;
            if seconds >= quota.cpu_seconds then
                raise exception 'user % has used % CPU seconds in this %, and the quota is %', quota.owner, round(seconds),
                        quota.period, quota.cpu_seconds
                    using errcode = 'configuration_limit_exceeded',
                          hint = 'Wait for the next ' || quota.period || ' (UTC), or ask an administrator for more.';
            end if;
        end if;
    end loop;
end $$;

-- Beside the job's row, which its loader has locked: loads of one user that has a quota take turns until they commit.
create function pcfarm.check_quota()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_job name;
begin
    if not exists (select from pcfarm.quota) then
        return null;
    end if;
    select j.owner into of_job from pcfarm.job j where j.job_id = new.job_id;
    insert into pcfarm.quota_used as u (owner, period, since, problems)
    select q.owner, q.period, date_trunc(q.period, clock_timestamp(), 'UTC'), new.problems
    from pcfarm.quota q where q.owner = of_job order by q.period
    on conflict (owner, period, since) do update set problems = u.problems + excluded.problems;
    -- With what is counted, this included.
    perform pcfarm.refuse_over_quota(of_job, 0);
    return null;
end $$;
create trigger check_quota after insert on pcfarm.lane for each row
    when (new.kind <> 'retry') execute function pcfarm.check_quota();

-- Options that are not given stay as they are; null: as much as they like.
create function pcfarm.set_quotas(names name[], period text, options jsonb)
returns void language plpgsql as $$
begin
    perform pcfarm.check_transaction();
    perform pcfarm.check_options(options, array['problems', 'cpu_seconds'], 'quota');
    if period is null or period not in ('day', 'month') then
        raise exception 'a quota is for a day or a month, and not for %', coalesce(quote_literal(period), 'null')
            using errcode = 'invalid_parameter_value', constraint = 'quota_period';
    end if;
    insert into pcfarm.farm_user (name) select distinct n from unnest(names) n order by n on conflict do nothing;
    perform from pcfarm.farm_user u where u.name = any (names) order by u.name for no key update;
    with wanted as materialized (
        select n.name,
            case when options ? 'problems' then (options ->> 'problems')::bigint else q.problems end as problems,
            case when options ? 'cpu_seconds' then (options ->> 'cpu_seconds')::float8 else q.cpu_seconds end as cpu_seconds
        from (select distinct unnest(names) as name) n
        left join pcfarm.quota q on q.owner = n.name and q.period = set_quotas.period),
    gone as (
        delete from pcfarm.quota q using wanted w
        where q.owner = w.name and q.period = set_quotas.period and w.problems is null and w.cpu_seconds is null)
    insert into pcfarm.quota as q (owner, period, problems, cpu_seconds)
    select w.name, set_quotas.period, w.problems, w.cpu_seconds from wanted w
    where w.problems is not null or w.cpu_seconds is not null
    on conflict on constraint quota_pkey do update set problems = excluded.problems, cpu_seconds = excluded.cpu_seconds;
end $$;
comment on function pcfarm.set_quotas is
    'The same for several users at once. Options: problems, cpu_seconds; what is not named stays, null is as much as they like.';

create function pcfarm.set_quota(owner text, period text, problems bigint, cpu_seconds double precision)
returns void language sql as $$
    select pcfarm.check_transaction();
    select pcfarm.set_quotas(array[owner]::name[], period, jsonb_build_object('problems', problems, 'cpu_seconds', cpu_seconds))
$$;
comment on function pcfarm.set_quota is
    'What a user may load in each day or month (UTC): problems, and nothing any more once so many CPU seconds are used. '
    'Null: as much as it likes.';
create trigger note after insert or update or delete on pcfarm.quota for each row
    execute function pcfarm.note_setting('quota', 'owner');

-- Changes of settings that are meant for one version ------------------------------------------------------------------------

-- Of what administrators set, not of what comes of it; null: there is none. Limits of a user are one thing with what it has
-- of job types; so are its quotas.
create function pcfarm.version_of(what text, name text)
returns text language sql stable as $$
    select case what
        when 'user' then (
            select md5(jsonb_build_array(u.queue_limit, u.concurrency, u.allocation, u.prohibited, (
                select jsonb_agg(to_jsonb(t) order by t.job_type) from pcfarm.user_job_type t where t.user_name = u.name))::text)
            from pcfarm.farm_user u where u.name = version_of.name::name)
        when 'defaults' then (
            select md5(jsonb_build_array(f.queue_limit, f.concurrency, f.allocation)::text) from pcfarm.farm f)
        when 'quota' then (
            select md5(coalesce(jsonb_agg(to_jsonb(q) order by q.period), '[]')::text)
            from pcfarm.quota q where q.owner = version_of.name::name)
        when 'selection' then (select md5(s.selection::text) from pcfarm.selection s where s.hostname = version_of.name)
        when 'presence' then (select md5(r.wanted::text) from pcfarm.presence r where r.hostname = version_of.name)
        when 'resource' then (
            select md5(jsonb_build_array(r.tokens, r.description)::text) from pcfarm.resource r where r.name = version_of.name)
        when 'profile entry' then (
            select md5(to_jsonb(p)::text) from pcfarm.profile p where p.profile_id = version_of.name::bigint)
        when 'job type' then (
            select md5(jsonb_build_array(to_jsonb(t) - 'suspended_since' - 'suspended_reason',
                (select jsonb_object_agg(n.resource, n.tokens) from pcfarm.job_type_resource n where n.job_type = t.name),
                (select jsonb_object_agg(r.name, r.query) from pcfarm.related_read r where r.job_type = t.name))::text)
            from pcfarm.job_type t where t.name = version_of.name)
        when 'account' then (
            select md5(jsonb_build_array(a.role, a.disabled_at)::text)
            from pcfarm.account a where a.user_name = version_of.name::name)
    end
$$;

-- Refuses (PF412) what is meant for another version than that which there is; an empty version is any, * is any of what is
-- there, and none is that of what is not there. Whoever comes by a server for the same thing takes turns from here to the end of the transaction, and
-- whoever comes by SQL waits at the row: statements call this in their WHERE, so that what they do comes after it.
create function pcfarm.expect_version(what text, name text, version text)
returns boolean language plpgsql as $$
begin
    perform pg_advisory_xact_lock(hashtextextended(format('pcfarm %s %s', what, name), 0));
    if version = '' then
        return true;
    end if;
    case what
        when 'user', 'quota' then
            perform from pcfarm.farm_user u where u.name = expect_version.name::name for no key update;
        when 'defaults' then perform from pcfarm.farm f for no key update;
        when 'selection' then
            perform from pcfarm.selection s where s.hostname = expect_version.name for no key update;
        when 'presence' then
            perform from pcfarm.presence r where r.hostname = expect_version.name for no key update;
        when 'resource' then
            perform from pcfarm.resource r where r.name = expect_version.name for no key update;
        when 'profile entry' then
            perform from pcfarm.profile p where p.profile_id = expect_version.name::bigint for no key update;
        when 'job type' then perform from pcfarm.job_type t where t.name = expect_version.name for no key update;
        when 'account' then
            perform from pcfarm.account a where a.user_name = expect_version.name::name for no key update;
    end case;
    if coalesce(pcfarm.version_of(what, name), 'none') <> version
        and (version <> '*' or pcfarm.version_of(what, name) is null)
    then
        raise exception '% % is not of the version that this was meant for', what, quote_literal(name)
            using errcode = 'PF412', hint = 'Somebody else has changed it: read it again.';
    end if;
    return true;
end $$;

-- Job types for whoever administers the farm, and not its database ----------------------------------------------------------

-- Options are those of create_job_type, and controller. What is not named stays as it is, or, anew, is as of a new one; null is
-- as of a new one; of resources those that are named change, and 0 takes one away. Whose rights a job type's SQL has, and what
-- that SQL is, stays in either way unless it is named. True: there was none before.
create function pcfarm.set_job_type(name text, options jsonb, anew boolean default false)
returns boolean language plpgsql as $$
declare
    before pcfarm.job_type;
    is_new boolean;
    kept   jsonb := '{}';
    needs  jsonb := '{}';
begin
    perform pcfarm.check_transaction();
    if jsonb_typeof(coalesce(options -> 'resources', 'null')) not in ('object', 'null') then
        raise exception 'job type %: resources must be an object of names and numbers', set_job_type.name
            using errcode = 'invalid_parameter_value', constraint = 'job_type_resources';
    end if;
    select t.* into before from pcfarm.job_type t where t.name = set_job_type.name for update;
    is_new := not found;
    if not is_new then
        kept := jsonb_build_object('read_role', before.read_role, 'read_time_limit', before.read_time_limit,
            'write_role', before.write_role);
        if not anew then
            kept := kept || jsonb_build_object('controller', before.controller, 'description', before.description,
                'default_priority', before.default_priority, 'default_duration', before.default_duration,
                'max_attempts', before.max_attempts, 'retry_delay', before.retry_delay,
                'retry_delay_limit', before.retry_delay_limit, 'time_limit', before.time_limit,
                'retry_first', before.retry_first, 'keep_results', before.keep_results, 'labels', before.labels,
                'require', case when before.requirement is not null then pcfarm.conditions(before.requirement) end,
                'retention', before.retention);
            select coalesce(jsonb_object_agg(n.resource, n.tokens), '{}') into needs
            from pcfarm.job_type_resource n where n.job_type = set_job_type.name;
        end if;
    end if;
    if options -> 'resources' = 'null' then
        needs := '{}';
    else
        select coalesce(jsonb_object_agg(r.key, r.value), '{}') into needs
        from jsonb_each(needs || coalesce(options -> 'resources', '{}')) r where r.value not in ('null', '0');
    end if;
    kept := jsonb_strip_nulls(kept || coalesce(options, '{}') || jsonb_build_object('resources', needs));
    if kept ->> 'controller' is null then
        raise exception 'job type %: which controller solves its problems?', set_job_type.name
            using errcode = 'invalid_parameter_value', constraint = 'job_type_controller',
                  hint = 'Those that workstations have are in pcfarm.workstation_status.';
    end if;
    perform pcfarm.create_job_type(set_job_type.name, kept ->> 'controller', kept - 'controller');
    return is_new;
end $$;
comment on function pcfarm.set_job_type is
    'Makes a job type or changes one. Options: controller, and those of pcfarm.create_job_type. What is not named stays.';

-- Its profile goes with it, and what users may have of it. Whoever makes a job, a schedule or a subscription of it meanwhile
-- waits for this, and is refused then.
create function pcfarm.delete_job_type(name text)
returns void language plpgsql as $$
declare
    before pcfarm.job_type;
    users  text;
begin
    perform pcfarm.check_transaction();
    select t.* into before from pcfarm.job_type t where t.name = delete_job_type.name for update;
    if not found then
        raise exception 'there is no job type %', coalesce(quote_literal(delete_job_type.name), 'null')
            using errcode = 'no_data_found';
    end if;
    -- The next statement sees what was there when the lock was had. Some of each are named.
    select string_agg(u.what || ' ' || case when cardinality(u.names) > 5
            then array_to_string(u.names[:5], ', ') || ' and more' else array_to_string(u.names, ', ') end, '; ' order by u.n)
    into users
    from (
        select 1 as n, 'jobs' as what, array(
            select j.job_id::text from (
                select j.job_id from pcfarm.job j where j.job_type = before.name
                union select l.job_id from pcfarm.lane l where l.job_type = before.name) j
            order by j.job_id desc limit 6) as names
        union all select 2, 'schedules', array(
            select s.owner || '/' || s.name from pcfarm.schedule s where s.template ->> 'job_type' = before.name
            order by s.owner, s.name limit 6)
        union all select 3, 'subscriptions', array(
            select s.subscription_id::text from pcfarm.subscription s where s.job_type = before.name
            order by s.subscription_id limit 6)
        union all select 4, 'submissions', array(
            select s.submission_id::text from pcfarm.submission s
            where s.state in ('receiving', 'stored') and s.asked ->> 'job_type' = before.name
            order by s.submission_id limit 6)
        union all select 5, 'selections of', array(
            select s.hostname from pcfarm.selection s where s.selection -> 'job_types' ? before.name
            order by s.hostname limit 6)) u
    where u.names <> '{}';
    if users is not null then
        raise exception 'job type % is in use: %', before.name, users
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Jobs that have ended count until its retention has removed them.';
    end if;
    if before.write_back is not null then
        perform pcfarm.set_write_back(before.name, null);
    end if;
    delete from pcfarm.job_type t where t.name = before.name;
    perform pg_notify('pcfarm', 'job_type');
end $$;
comment on function pcfarm.delete_job_type is 'Removes a job type that nothing uses any more, with its profile.';

-- What nobody calls by hand is nobody's to call; loaders may change jobs, and look at what was used.
do $$
declare
    f record;
begin
    for f in
        select p.oid::regprocedure as signature, p.proname
        from pg_proc p where p.pronamespace = 'pcfarm'::regnamespace
            and p.proname in ('claim_request', 'job_version', 'update_job', 'begin_submission', 'submission_is_loaded',
                'check_quota', 'refuse_over_quota', 'set_quota', 'set_quotas', 'version_of', 'expect_version',
                'set_job_type', 'delete_job_type')
    loop
        execute format('revoke all on routine %s from public', f.signature);
        if f.proname in ('job_version', 'update_job') and exists (select from pg_roles where rolname = 'pcfarm_loader') then
            execute format('grant execute on routine %s to pcfarm_loader', f.signature);
        end if;
    end loop;
    if exists (select from pg_roles where rolname = 'pcfarm_loader') then
        grant select on pcfarm.usage to pcfarm_loader;
    end if;
end $$;
