-- The queue: what is true lives in these tables, and nowhere else.
--
-- Every large table leads with job_id, and job_id is the key that retention drops by: no unique key spans
-- jobs, so old nights can become partitions of their own. No foreign key points at a row that many touch.

create schema pcfarm;
revoke all on schema pcfarm from public;

-- Refuses transactions in which functions that write cannot keep their promises. After waiting for a lock they look again in the next
-- statement: with one snapshot for the whole transaction they would see the state from before the wait. Each public function that
-- writes (it has a comment and is volatile) begins with this check, so that its error says what to set.
create function pcfarm.check_transaction()
returns void language plpgsql as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'PC Farm cannot work in a % transaction', current_setting('transaction_isolation')
            using errcode = 'feature_not_supported',
                  hint = 'Begin it with "begin isolation level read committed", or set default_transaction_isolation to '
                         '"read committed" for this session or role.';
    elsif current_setting('transaction_read_only')::boolean then
        raise exception 'PC Farm cannot write in a read-only transaction'
            using errcode = 'read_only_sql_transaction',
                  hint = case when pg_is_in_recovery() then 'This is a standby: connect to the primary.'
                         else 'Begin it with "begin read write", or set default_transaction_read_only to off for this '
                              'session or role.' end;
    end if;
end $$;

-- Who asks: the database role, or the user whom a server acts for. A server says so in settings of its connection, which
-- count for nothing on connections of roles that may not act as the owner of this schema.
create function pcfarm.is_server()
-- Not in SQL, whose plan would be made anew with each call.
returns boolean language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return (select pg_has_role(session_user, n.nspowner, 'member') from pg_namespace n where n.nspname = 'pcfarm');
end $$;

create function pcfarm.acting_user()
returns name language plpgsql stable as $$
declare
    for_user text := coalesce(current_setting('pcfarm.user', true), '');
begin
    if for_user <> '' and pcfarm.is_server() then
        return for_user;
    end if;
    return session_user;
end $$;
comment on function pcfarm.acting_user is 'Who asks: the database role, or the user whom a server acts for.';

-- Of users of a server only operators see what belongs to others. Whoever comes by SQL sees what its grants let it see.
create function pcfarm.sees(owner name)
returns boolean language plpgsql stable as $$
begin
    return coalesce(current_setting('pcfarm.rights', true), '') <> 'own' or owner = pcfarm.acting_user();
end $$;

-- Which PostgreSQL this is. A restored copy or a promoted standby is another one: checkouts that were handed out before
-- may be missing in it or may live on in it, so none of them is trusted.
create table pcfarm.database (
    singleton         boolean primary key default true constraint one_row check (singleton),
    system_identifier bigint not null,
    timeline          bigint not null
);

-- How a kind of problem runs ------------------------------------------------------------------------------

-- What an agent says that it runs, to be given problems of this controller: one that runs modules runs them all.
create function pcfarm.announced(controller text)
returns text language sql immutable as $$ select case when controller like 'wasm:%' then 'wasm' else controller end $$;

create table pcfarm.job_type (
    name             text primary key
                     constraint job_type_name check (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
    controller       text not null constraint controller_name
                     check (controller ~ '^((exec:)?[A-Za-z0-9_.-]{1,63}|wasm:[0-9a-f]{64})$'),
    description      text not null default '',
    default_priority integer not null default 0,
    -- A job's deadline is its creation plus this.
    default_duration interval constraint positive_duration check (default_duration > interval '0'),
    max_attempts     integer not null default 3 constraint attempts_range check (max_attempts between 1 and 100),
    -- After a failed attempt a problem waits for about this, twice as long each time, and for no longer than that.
    retry_delay       interval constraint positive_retry_delay check (retry_delay > interval '0'),
    -- Its jobs are removed, with their problems and results, when they ended this long ago.
    retention         interval constraint retention_range check (retention between interval '0' and interval '1000 years'),
    retry_delay_limit interval not null default '1 hour'
                      constraint positive_retry_delay_limit check (retry_delay_limit > interval '0'),
    -- Longest that a checkout may be in a workstation's hands.
    time_limit       interval constraint positive_time_limit check (time_limit > interval '0'),
    -- Serve the retry lane first instead of last.
    retry_first      boolean not null default false,
    -- Store solutions in pcfarm.result; off where write-back keeps them in the user's own tables.
    keep_results     boolean not null default true,
    -- The login role whose rights related reads have, and the longest that one may take.
    read_role        name,
    read_time_limit  interval not null default '30 seconds'
                     constraint positive_read_time_limit check (read_time_limit > interval '0'),
    -- The NOLOGIN role whose rights write-back has, and its statement.
    write_role       name,
    write_back       text,
    -- Handed only to workstations that have all of these.
    labels           text[] not null default '{}',
    -- Conditions that a workstation must fulfil, beside those labels, as pcfarm.requirement makes them; null: none.
    requirement      jsonb,
    -- None of its problems is handed out since then.
    suspended_since  timestamptz,
    suspended_reason text not null default '',
    constraint write_back_has_role check (write_back is null or write_role is not null)
);

create table pcfarm.related_read (
    job_type text not null references pcfarm.job_type on delete cascade,
    name     text not null constraint related_read_name check (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
    query    text not null,
    primary key (job_type, name)
);

-- Jobs and their lanes --------------------------------------------------------------------------------------
--
--   loading --open_job--> open <--hold_job / release_job--> held
--      |                   |                                  |
--      |                   +--empty--> done | failed --retry_job--> open
--      +-------------------+----cancel_job--> cancelled <-----+

create table pcfarm.job (
    job_id          bigint generated always as identity primary key,
    name            text not null constraint job_name_length check (length(name) between 1 and 200),
    job_type        text not null references pcfarm.job_type,
    owner           name not null default pcfarm.acting_user(),
    title           text not null default '',
    state           text not null default 'loading' constraint job_state
                    check (state in ('loading', 'open', 'held', 'done', 'failed', 'cancelled')),
    priority        integer not null,
    deadline        timestamptz,
    not_before      timestamptz,
    -- Stays open when it is empty.
    standing        boolean not null default false,
    -- Handed to controllers with every checkout.
    parameters      jsonb,
    -- Payloads name files that their problems need, under "files".
    problem_files   boolean not null default false,
    -- Conditions that a workstation must fulfil, beside those of the job type.
    requirement     jsonb,
    idempotency_key text,
    -- What the first submit with this key asked for; a different one is an error, not a repetition.
    submitted       jsonb,
    -- A user has one job of each: whoever asks for another gets the first, or is refused.
    unique_key      text,
    -- Where it came from, if its path is traced, as W3C's Trace Context writes it.
    trace_parent    text constraint job_trace_parent
                    check (trace_parent ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'),
    created_at      timestamptz not null default clock_timestamp(),
    opened_at       timestamptz,
    ended_at        timestamptz,
    constraint opened_when_open check (opened_at is not null or state in ('loading', 'cancelled')),
    constraint ended_when_ended check ((ended_at is not null) = (state in ('done', 'failed', 'cancelled')))
);
-- Most jobs have neither, and cost nothing there.
create unique index job_idempotency on pcfarm.job (owner, idempotency_key) where idempotency_key is not null;
create unique index job_unique_key on pcfarm.job (owner, unique_key) where unique_key is not null;
create index job_not_ended on pcfarm.job (job_id) where ended_at is null;
create index job_by_owner on pcfarm.job (owner, job_id);
create index job_by_end on pcfarm.job (job_type, ended_at) where ended_at is not null;

-- What a job's controllers and people tell each other while it runs. Apart from the job's row, which hand-outs share.
create table pcfarm.job_info (
    job_id     bigint primary key,
    info       jsonb not null constraint info_is_an_object check (jsonb_typeof(info) = 'object')
               constraint info_at_most_64_kib check (pg_column_size(info) <= 65536),
    changed_at timestamptz not null default clock_timestamp()
);

-- Jobs that wait for others. A job that is not there any more is waited for no longer.
create table pcfarm.job_after (
    job_id    bigint not null,
    after_job bigint not null,
    -- However it ended; else it must be done.
    ended     boolean not null default false,
    primary key (job_id, after_job)
);
create index job_after_by_other on pcfarm.job_after (after_job);

create sequence pcfarm.lane_number;

-- A lane is written when it is registered and once more when it is exhausted: its pointer is the newest of
-- its checkouts, so hand-outs leave no row versions here however long somebody's snapshot stays open.
create table pcfarm.lane (
    job_id         bigint not null,
    lane_id        bigint not null,
    -- 'later': its problems may not be handed out yet; each waits in pcfarm.delayed, and then in a retry lane.
    kind           text not null constraint lane_kind check (kind in ('load', 'own', 'retry', 'later')),
    job_type       text not null references pcfarm.job_type,
    -- Of its problems: lanes of a job are served in this order, highest first.
    priority       integer not null default 0,
    -- Its convoys are of problems that depend on each other: never halved.
    grouped        boolean not null default false,
    -- The next batch order to assign. The retry lane's is found by index under this row's lock.
    next_insertion bigint,
    problems       bigint not null default 0,
    -- Every convoy has been handed out; never true of a retry lane.
    exhausted      boolean not null default false,
    loaded_at      timestamptz not null default clock_timestamp(),
    -- Not handed out until somebody says so.
    parked         boolean not null default false,
    primary key (job_id, lane_id),
    constraint retry_lane_grows check ((kind = 'retry') = (next_insertion is null)),
    constraint retry_lane_is_never_exhausted check (not (exhausted and kind = 'retry')),
    constraint later_lane_is_exhausted check (exhausted or kind <> 'later')
);
create index lane_with_work on pcfarm.lane (job_id, lane_id) where not exhausted;
-- Made when something comes back: by those who close checkouts, and nobody waits for a loader.
create unique index lane_retry on pcfarm.lane (job_id, job_type, priority) where kind = 'retry';

-- Problems ------------------------------------------------------------------------------------------------
--
-- A problem has no state: its result says how it ended, and where it is follows from pointers and checkouts.
-- Lane 0 is for batch orders of one's own. Numbers in lane 0 come from a sequence; other lanes number their
-- problems densely in dispatch order: problem_id = lane_id * 10^10 + number.

create sequence pcfarm.problem_number;

create table pcfarm.problem (
    job_id      bigint not null,
    lane_id     bigint not null default 0,
    problem_id  bigint not null default nextval('pcfarm.problem_number'),
    -- Null between COPY and assign_batch_order.
    batch_order bigint constraint batch_order_not_negative check (batch_order >= 0),
    key         text not null constraint key_at_most_1_kib check (octet_length(key) <= 1024),
    payload     jsonb not null constraint payload_at_most_1_mib check (pg_column_size(payload) <= 1048576),
    -- What it counts against limits by the hour; null: 1.
    weight      integer constraint positive_weight check (weight > 0)
);
-- The one index: dispatch reads a range of it, and so does everything that asks what a checkout holds.
create unique index problem_in_dispatch_order
    on pcfarm.problem (job_id, lane_id, batch_order, problem_id);

-- What came back. A problem's newest row says where it waits now; its home is where its problem row is.
create table pcfarm.requeued (
    job_id      bigint not null,
    lane_id     bigint not null,
    batch_order bigint not null,
    problem_id  bigint not null,
    home_lane   bigint not null,
    home_order  bigint not null,
    -- Attempts used up so far, and checkouts that were lost with this problem among others.
    attempts    integer not null,
    losses      integer not null,
    -- This convoy is a checkout of its own: something in it may kill whoever runs it.
    alone       boolean not null,
    grouped     boolean not null,
    message     text,
    requeued_at timestamptz not null default clock_timestamp(),
    -- The workstation on which it failed; null: it came back for another reason.
    failed_on   bigint,
    primary key (job_id, lane_id, batch_order, problem_id)
);
create index requeued_by_problem on pcfarm.requeued (job_id, problem_id, batch_order desc);
create index requeued_failed on pcfarm.requeued (requeued_at) where failed_on is not null;

-- What may not be handed out yet: problems that were loaded with a time of theirs, and failed ones between attempts. When
-- they are due they go to their retry lanes, many at a time.
create table pcfarm.delayed (
    job_id     bigint not null,
    problem_id bigint not null,
    due_at     timestamptz not null,
    home_lane  bigint not null,
    home_order bigint not null,
    attempts   integer not null default 0,
    losses     integer not null default 0,
    alone      boolean not null default false,
    grouped    boolean not null,
    message    text,
    failed_on  bigint,
    primary key (job_id, problem_id)
);
create index delayed_by_due on pcfarm.delayed (due_at);
-- Failed ones, among which times of a wrong clock are looked for.
create index delayed_failed on pcfarm.delayed (due_at) where message is not null;

-- Who works -----------------------------------------------------------------------------------------------

create table pcfarm.server (
    server_id       bigint generated always as identity primary key,
    name            text not null,
    address         text not null,
    version         text not null,
    started_at      timestamptz not null default clock_timestamp(),
    -- Written by its server, about once a second, more often with a short lease: the liveness of all its workstations in one row.
    heard_at        timestamptz not null default clock_timestamp(),
    -- Since when it has heard agents and written without a gap.
    hearing_since   timestamptz not null default clock_timestamp(),
    refused_results bigint not null default 0,
    -- Some of its workstations that have been idle for more than a second, as of its last pulse.
    idle            bigint[] not null default '{}',
    stopped_at      timestamptz
);
create index server_running on pcfarm.server (server_id) where stopped_at is null;

create sequence pcfarm.session_number;

create table pcfarm.workstation (
    workstation_id bigint generated always as identity primary key,
    identity       uuid not null unique,
    -- Made at every start of the agent: a new one means that what the old one held is lost, the same one that
    -- it never received what it does not hold.
    instance       uuid not null,
    -- Time at which its agent last answered a server that asked, because another agent named the same identity.
    answered_at    timestamptz,
    -- Digest of the machine to which the identity is bound; null: its agent has named none.
    machine        bytea constraint machine_digest check (octet_length(machine) = 32),
    hostname       text not null,
    cores          integer not null,
    memory_bytes   bigint not null,
    -- Name and version, for people; and linux or windows, x86_64 or aarch64: empty where nothing was said.
    system         text not null,
    system_name    text not null default '',
    arch           text not null default '',
    -- Of each its vendor and its name.
    gpus           text[] not null default '{}',
    -- That its owner lets problems use: of each its name and, where it is known, its version.
    programs       text[] not null default '{}',
    agent_version  text not null,
    controllers    text[] not null,
    -- What its owner says that it is or has.
    labels         text[] not null default '{}',
    -- 'waiting' reads as 'processing' while it holds a checkout; see pcfarm.workstation_status.
    --
    --   waiting, suspended, draining --goodbye--> offline --connects--> waiting, suspended, draining
    --                 +-------silent for the lease--> dead ----connects------^
    state          text not null default 'waiting' constraint workstation_state
                   check (state in ('waiting', 'suspended', 'draining', 'offline', 'dead')),
    since          timestamptz not null default clock_timestamp(),
    reason         text not null default '',
    -- To be drained: by whom, since when, why, and when what is not finished is given back. While it is dead, too.
    drain          boolean not null default false,
    drained_by     text,
    drained_since  timestamptz,
    drained_why    text not null default '',
    drain_deadline timestamptz,
    -- What it failed that others solved, if that is why it is drained: {"job_type", "problems": how many, "evidence": [{"job_id",
    -- "problem_id", "message", "solved_on"}, …]: some of them}. What was before trusted_since is not held against it.
    quarantine     jsonb,
    trusted_since  timestamptz,
    -- What administrators want to remember about it.
    note           text not null default '',
    -- What its agent tells by that nobody is there, in words, and what it runs on: mains, battery; empty: it has not said.
    idle_source    text not null default '',
    power          text not null default '',
    -- How quickly its agent gave way to its person: the median and the 99th percentile of so many times; null: it never did.
    yields         integer,
    yield_p50_ms   bigint,
    yield_p99_ms   bigint,
    -- What its agent goes by when it decides whether it may work: [{"name", "value", "by", "refused"}, …]; null: it has not said.
    presence       jsonb,
    -- Findings of its agent about presence sources, for people: a session helper that ended, an input device that makes noise.
    presence_notes text[] not null default '{}',
    -- How it can be woken, as far as its owner lets the farm know: its network card, and the address that all hear in the card's network.
    wake_card      text constraint wake_card check (wake_card ~ '^([0-9a-f]{2}:){5}[0-9a-f]{2}$'),
    wake_broadcast text,
    -- When the farm began to wake it last.
    woken_at       timestamptz,
    -- It has said that it goes to sleep: that it is silent does not mean that something is wrong.
    asleep         boolean not null default false,
    -- The connection that speaks for it: what was handed out to an older one comes back as never received.
    session        bigint not null,
    server_id      bigint not null,
    -- Set by its server when it stops hearing it; null while it is heard.
    silent_since   timestamptz,
    -- Its connection has ended, and was not only silent.
    disconnected   boolean not null default false,
    -- Time since which its agent cannot tell whether a person is present; null: it can, or has not said.
    cannot_tell_since timestamptz,
    -- The event about it was written.
    cannot_tell_told  boolean not null default false,
    registered_at  timestamptz not null default clock_timestamp(),
    connected_at   timestamptz not null default clock_timestamp(),
    constraint yields_whole check (num_nulls(yields, yield_p50_ms, yield_p99_ms) in (0, 3)),
    constraint told_of_something check (cannot_tell_since is not null or not cannot_tell_told),
    constraint no_deadline_without_drain check (drain or drain_deadline is null),
    constraint quarantined_is_drained check (drain or quarantine is null),
    constraint presence_notes_at_most_16 check (cardinality(presence_notes) <= 16),
    constraint note_at_most_1000 check (length(note) <= 1000),
    constraint drain_reason_at_most_200 check (length(drained_why) <= 200)
);
create index workstation_present on pcfarm.workstation (workstation_id) where state not in ('offline', 'dead');
create index workstation_cannot_tell on pcfarm.workstation (cannot_tell_since) where cannot_tell_since is not null;
create index workstation_gone on pcfarm.workstation (workstation_id) where state in ('offline', 'dead');

-- Recent work of each workstation. A row of its own, so that the workstation's row is not rewritten for it.
create table pcfarm.workstation_record (
    workstation_id bigint primary key,
    -- Its last accepted result, to the hour; null: none yet.
    worked_at      timestamptz,
    -- Days (UTC) since then on which it was connected and work waited that it could have done, and the last of these days.
    idle_days      integer not null default 0 constraint idle_days_not_negative check (idle_days >= 0),
    idle_on        date,
    -- When its work was last looked for.
    looked_at      timestamptz not null default '-infinity',
    -- The event about it was written.
    told           boolean not null default false
);

-- How fast a workstation was when it was measured last. Apart from its row: servers write those that have changed, all of
-- their own with one statement, every few seconds.
create table pcfarm.workstation_speed (
    workstation_id      bigint primary key,
    job_type            text not null,
    problems_per_second double precision not null,
    measured_at         timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

-- Workstations that are gone for good, so that what they did still has a name.
create table pcfarm.forgotten_workstation (
    workstation_id bigint primary key,
    identity       uuid not null,
    hostname       text not null,
    note           text not null,
    registered_at  timestamptz not null,
    forgotten_at   timestamptz not null default clock_timestamp(),
    forgotten_by   name not null default pcfarm.acting_user()
);
create index forgotten_workstation_by_time on pcfarm.forgotten_workstation (forgotten_at);

-- Checkouts -------------------------------------------------------------------------------------------------
--
-- The newest checkout of a lane is the lane's pointer: its to_order is next_extraction. Each checkout starts
-- where the one before it ended, so the unique key on from_order is a compare-and-swap between servers: of
-- two that start at the same place one commits and the other is told.
--
--   live --all results stored--> accepted
--     +----finished, the rest handed back--> given_back
--     +----workstation dead, time ran out, job cancelled, never received--> revoked

create table pcfarm.checkout (
    checkout_id    bigint generated always as identity primary key,
    job_id         bigint not null,
    lane_id        bigint not null,
    from_order     bigint not null,
    to_order       bigint not null, -- exclusive
    job_type       text not null,
    -- The job's, where it is another: its limits hold, too.
    of_type        text,
    -- The job's: what its user has in progress is read here.
    owner          name not null default session_user,
    problems       integer not null,
    -- Of these, how many have a result that came under this checkout.
    delivered      integer not null default 0,
    -- Problems of the range that the workstation returned unbegun while it went on with the others; problems does not count
    -- them. Null: none.
    given_back     bigint[],
    workstation_id bigint not null,
    -- With the id, what lets a result in. Ids can repeat after a restore, these 64 random bits do not.
    token          bigint not null,
    checked_out_at timestamptz not null default clock_timestamp(),
    deadline       timestamptz,
    ended_at       timestamptz,
    ending         text constraint checkout_ending check (ending in ('accepted', 'given_back', 'revoked')),
    reason         text not null default '',
    -- None: they are forgotten.
    constraint checkout_holds_problems check (problems > 0 or problems = 0 and ended_at is not null),
    constraint checkout_range check (from_order < to_order),
    constraint ended_how check ((ended_at is null) = (ending is null)),
    constraint delivers_what_it_holds check (delivered between 0 and problems),
    constraint checkout_after_checkout unique (job_id, lane_id, from_order)
);
-- With statistics of an empty farm, to read an index of what is live from end to end, with every entry that a snapshot
-- keeps, seems to cost no more than to look something up in the right one. So each can be used for a condition on its
-- column alone: that it is not null, which is never in doubt, is known to the planner from nothing else. Nor is there a
-- second column of its own, a condition on which would be taken for a use of the index. All that is live: job_id > 0.
create index checkout_live on pcfarm.checkout (workstation_id) where ended_at is null and workstation_id is not null;
create index checkout_live_by_job on pcfarm.checkout (job_id) where ended_at is null and job_id is not null;
create index checkout_live_by_type on pcfarm.checkout (job_type, owner) where ended_at is null and job_type is not null;
create index checkout_live_of_type on pcfarm.checkout (of_type, owner) where ended_at is null and of_type is not null;
create index checkout_overdue on pcfarm.checkout (deadline) where ended_at is null and deadline is not null;

-- How problems ended ----------------------------------------------------------------------------------------

create table pcfarm.result (
    job_id      bigint not null,
    problem_id  bigint not null,
    checkout_id bigint not null,
    accepted_at timestamptz not null default clock_timestamp(),
    attempts    integer not null,
    failed      boolean not null,
    message     text,
    -- Where a failed problem's row is, so that retry_job finds it without an index by problem id.
    home_lane   bigint,
    home_order  bigint,
    solution    jsonb,
    -- The second guard, behind the checkout: one accepted result per problem.
    primary key (job_id, problem_id),
    -- The size of a solution, too: a constraint of its own costs a sixteenth of what it takes to store a result.
    constraint done_or_failed check (case
        when failed then message is not null and home_lane is not null and home_order is not null and solution is null
        else message is null and home_lane is null and home_order is null and pg_column_size(solution) <= 1048576 end)
);
create index result_failed on pcfarm.result (job_id, problem_id) where failed;

-- An attempt that failed under a live checkout. It is requeued, with one attempt less, when that closes.
create table pcfarm.failed_attempt (
    job_id      bigint not null,
    checkout_id bigint not null,
    problem_id  bigint not null,
    message     text not null,
    -- It was solved, and what it was to be stored with or into failed: no fault of a workstation.
    when_stored boolean not null default false,
    primary key (job_id, checkout_id, problem_id)
);

-- Progress is summed from these, one row per accepting transaction, folded now and then: no row is hot.
create table pcfarm.progress (
    job_id   bigint not null,
    job_type text not null,
    done     bigint not null default 0,
    failed   bigint not null default 0,
    requeued bigint not null default 0,
    -- What has been added to pcfarm.statistic is not added again.
    noted_at timestamptz not null default clock_timestamp(),
    counted  boolean not null default false
);
create index progress_not_counted on pcfarm.progress (noted_at) where not counted;

-- What was done in each hour.
create table pcfarm.statistic (
    hour     timestamptz not null,
    job_type text not null,
    owner    name not null,
    done     bigint not null,
    failed   bigint not null,
    requeued bigint not null,
    primary key (hour, job_type, owner)
);

create index progress_by_job on pcfarm.progress (job_id, job_type) include (done, failed, requeued);
