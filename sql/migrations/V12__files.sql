-- Files: content by its SHA-256, kept once for all who have put it there. A job type's module is one; agents fetch it, under a
-- checkout that needs it. A row without a hash is still coming, and has no name yet.

create table pcfarm.file (
    file_id    bigint generated always as identity primary key,
    sha256     bytea constraint file_by_hash unique constraint hash_is_a_sha256 check (octet_length(sha256) = 32),
    bytes      bigint constraint file_bytes_range check (bytes between 0 and 1073741824),
    -- While it comes, when the last of it came; then when it was last put, or seen to be needed.
    touched_at timestamptz not null default clock_timestamp(),
    constraint whole_with_its_hash check ((sha256 is null) = (bytes is null))
);
create index file_touched on pcfarm.file (touched_at);
comment on column pcfarm.file.touched_at is
    'While it comes, when the last of it came; then when it was last put, or seen to be needed; infinity for what problems have made.';

create table pcfarm.file_piece (
    file_id bigint not null references pcfarm.file on delete cascade,
    number  integer not null,
    content bytea not null constraint piece_at_most_1_mib check (octet_length(content) between 1 and 1048576),
    primary key (file_id, number)
);
-- Files are often packed already.
alter table pcfarm.file_piece alter column content set storage external;

-- Who has put it there, and under which name: whoever has not sees nothing of it.
create table pcfarm.file_holder (
    holder_id bigint generated always as identity primary key,
    file_id   bigint not null references pcfarm.file on delete cascade,
    owner     name not null,
    name      text not null constraint file_name_length check (length(name) <= 255),
    bytes     bigint not null,
    put_at    timestamptz not null default clock_timestamp(),
    constraint held_once unique (file_id, owner)
);
create index file_holder_by_owner on pcfarm.file_holder (owner, holder_id);

-- Modules that job types have, or had until a moment ago: checkouts that were handed out before go on with theirs.
create table pcfarm.job_type_module (
    job_type    text not null,
    sha256      bytea not null constraint module_is_a_file references pcfarm.file (sha256),
    replaced_at timestamptz,
    primary key (job_type, sha256)
);
create index job_type_module_by_hash on pcfarm.job_type_module (sha256);

-- What a job's problems need beside their payloads: files by the names that programs know them by.
create table pcfarm.job_file (
    job_id bigint not null,
    name   text not null constraint job_file_name check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$'),
    sha256 bytea not null constraint job_file_is_a_file references pcfarm.file (sha256),
    primary key (job_id, name)
);
create index job_file_by_hash on pcfarm.job_file (sha256);

-- What single problems of a job need, if the job says that its payloads name it: so that it is there while they are.
create table pcfarm.problem_file (
    job_id     bigint not null,
    problem_id bigint not null,
    sha256     bytea not null constraint problem_file_is_a_file references pcfarm.file (sha256),
    primary key (job_id, problem_id, sha256)
);
create index problem_file_by_hash on pcfarm.problem_file (sha256);

-- What problems have made: the files that a program left, sent under the checkout that held the problem, before its result.
-- They belong to the job's owner, and go with the problem. Of two attempts the later one's stands, as its result does.
create table pcfarm.output (
    job_id     bigint not null,
    problem_id bigint not null,
    name       text not null constraint output_name check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$'),
    sha256     bytea not null constraint output_is_a_file references pcfarm.file (sha256),
    bytes      bigint not null,
    owner      name not null,
    primary key (job_id, problem_id, name)
);
create index output_by_hash on pcfarm.output (sha256);

-- What each user has of both, in bytes: the sum of these rows, which are folded now and then. Whoever removes something does not
-- wait for those who add.
create table pcfarm.file_usage (
    owner name not null,
    bytes bigint not null
);
create index file_usage_by_owner on pcfarm.file_usage (owner);

-- Files that problems had made which are gone, by the statement: whether others need them is seen when they are committed, so that
-- of two who let go of the same neither waits for the other.
create table pcfarm.file_let_go (
    sha256 bytea not null
);

create function pcfarm.count_bytes_added()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.file_usage select a.owner, sum(a.bytes) from added a group by a.owner;
    return null;
end $$;
create function pcfarm.count_bytes_gone()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.file_usage select g.owner, -sum(g.bytes) from gone g group by g.owner;
    return null;
end $$;

-- A file that a problem has made is not looked at until the last of those problems goes: there may be millions.
create function pcfarm.output_keeps()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update pcfarm.file f set touched_at = 'infinity'
    where f.sha256 in (select a.sha256 from added a) and f.touched_at < 'infinity';
    return null;
end $$;
create function pcfarm.output_lets_go()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into pcfarm.file_let_go select distinct g.sha256 from gone g;
    return null;
end $$;

create trigger count_bytes_added after insert on pcfarm.file_holder
    referencing new table as added for each statement execute function pcfarm.count_bytes_added();
create trigger count_bytes_gone after delete on pcfarm.file_holder
    referencing old table as gone for each statement execute function pcfarm.count_bytes_gone();
create trigger count_bytes_added after insert on pcfarm.output
    referencing new table as added for each statement execute function pcfarm.count_bytes_added();
create trigger count_bytes_replacing after update on pcfarm.output
    referencing new table as added for each statement execute function pcfarm.count_bytes_added();
create trigger count_bytes_replaced after update on pcfarm.output
    referencing old table as gone for each statement execute function pcfarm.count_bytes_gone();
create trigger count_bytes_gone after delete on pcfarm.output
    referencing old table as gone for each statement execute function pcfarm.count_bytes_gone();
create trigger output_keeps after insert on pcfarm.output
    referencing new table as added for each statement execute function pcfarm.output_keeps();
create trigger output_keeps_instead after update on pcfarm.output
    referencing new table as added for each statement execute function pcfarm.output_keeps();
create trigger output_lets_go_instead after update on pcfarm.output
    referencing old table as gone for each statement execute function pcfarm.output_lets_go();
create trigger output_lets_go after delete on pcfarm.output
    referencing old table as gone for each statement execute function pcfarm.output_lets_go();

-- In the transaction that makes the job. Whoever has not put a file there cannot name it.
create function pcfarm.set_job_files(job bigint, files jsonb)
returns void language plpgsql as $$
declare
    wrong text;
    many  integer;
begin
    if jsonb_typeof(files) <> 'object' or exists (
        select from jsonb_each(case jsonb_typeof(files) when 'object' then files else '{}' end) f
        where jsonb_typeof(f.value) <> 'string' or not f.value #>> '{}' ~ '^[0-9a-f]{64}$')
    then
        raise exception 'files: an object of names and SHA-256 is wanted, and not %', left(files::text, 200)
            using errcode = 'invalid_parameter_value', constraint = 'files',
                  hint = 'It is like {"model.bin": "9f86d0…"}; `pcfarm files put` writes the hash, 64 small hexadecimal digits.';
    end if;
    select count(*) into many from jsonb_object_keys(files);
    if many > 100 then
        raise exception 'files: a job has at most 100, and this one has %', many
            using errcode = 'invalid_parameter_value', constraint = 'files';
    end if;
    -- Shared: they stay while this transaction says that they are needed.
    perform from pcfarm.file f
    where f.sha256 in (select decode(e.value, 'hex') from jsonb_each_text(files) e) order by f.file_id for key share;
    select e.value into wrong from jsonb_each_text(files) e
    where not exists (
        select from pcfarm.file f join pcfarm.file_holder h on h.file_id = f.file_id
        where f.sha256 = decode(e.value, 'hex') and pcfarm.sees(h.owner))
    limit 1;
    if found then
        raise exception 'files: there is no file %', wrong
            using errcode = 'invalid_parameter_value', constraint = 'files', hint = '`pcfarm files put` puts one there.';
    end if;
    insert into pcfarm.job_file (job_id, name, sha256)
    select job, e.key, decode(e.value, 'hex') from jsonb_each_text(files) e;
end $$;

-- What the payloads of these lanes name, if they name something as they should.
create function pcfarm.files_named(job bigint, lanes bigint[])
returns table (problem_id bigint, key text, sha256 bytea) language sql stable as $$
    select distinct p.problem_id, p.key, decode(e.value, 'hex')
    from pcfarm.problem p
    cross join lateral jsonb_each_text(
        case jsonb_typeof(p.payload -> 'files') when 'object' then p.payload -> 'files' else '{}' end) e
    where p.job_id = job and p.lane_id = any (lanes)
$$;

-- In the transaction that loads these lanes. Whom the job belongs to, or who loads, has put them there, or has them made by jobs.
create function pcfarm.set_problem_files(job bigint, lanes bigint[])
returns void language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_nestloop = off set jit = off as $$
declare
    whose name := (select j.owner from pcfarm.job j where j.job_id = job);
    wrong record;
begin
    select p.key, p.payload -> 'files' as files into wrong from pcfarm.problem p
    where p.job_id = job and p.lane_id = any (lanes)
        and jsonb_typeof(p.payload) = 'object' and jsonb_typeof(p.payload -> 'files') <> 'null'
        and (jsonb_typeof(p.payload -> 'files') <> 'object' or exists (
            select count(*)
            from jsonb_each(case jsonb_typeof(p.payload -> 'files') when 'object' then p.payload -> 'files' else '{}' end) f
            having count(*) > 100 or bool_or(jsonb_typeof(f.value) <> 'string' or not f.value #>> '{}' ~ '^[0-9a-f]{64}$'
                or not f.key ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$')))
    limit 1;
    if found then
        raise exception 'problem %: files: an object of at most 100 names and SHA-256 is wanted, and not %',
            wrong.key, left(wrong.files::text, 200)
            using errcode = 'invalid_parameter_value', constraint = 'files',
                  hint = 'It is like {"model.bin": "9f86d0…"}; `pcfarm files put` writes the hash, 64 small hexadecimal digits.';
    end if;
    -- Shared: they stay while this transaction says that they are needed.
    perform from pcfarm.file f
    where f.sha256 = any (array(select distinct n.sha256 from pcfarm.files_named(job, lanes) n)) order by f.file_id for key share;
    select n.key, n.sha256 into wrong
    from (select a.sha256, min(a.key) as key from pcfarm.files_named(job, lanes) a group by a.sha256) n
    where (
            select true from pcfarm.file f
            cross join lateral (
                select from pcfarm.file_holder h
                where h.file_id = f.file_id and h.owner = any (array[whose, pcfarm.acting_user()]) limit 1) h
            where f.sha256 = n.sha256) is null
        and (select true from pcfarm.output o where o.sha256 = n.sha256 and o.owner = whose limit 1) is null
    limit 1;
    if found then
        raise exception 'problem %: files: there is no file %', wrong.key, encode(wrong.sha256, 'hex')
            using errcode = 'invalid_parameter_value', constraint = 'files', hint = '`pcfarm files put` puts one there.';
    end if;
    insert into pcfarm.problem_file (job_id, problem_id, sha256)
    select job, n.problem_id, n.sha256 from pcfarm.files_named(job, lanes) n;
end $$;

alter table pcfarm.intake
    -- Files that nothing needs are kept this long after they were put, or needed last.
    add column keep_files interval not null default '7 days' constraint keep_files_not_negative check (keep_files >= interval '0'),
    -- Most bytes of files that a user may have.
    add column most_file_bytes bigint not null default 10737418240
        constraint most_file_bytes_not_negative check (most_file_bytes >= 0);

-- In the transaction that says so: a job type never names a module that is not there.
create function pcfarm.job_type_has_module()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    module bytea;
begin
    if tg_op <> 'DELETE' and new.controller like 'wasm:%' then
        module := decode(substr(new.controller, 6), 'hex');
        -- Shared: it stays while this transaction says that it is needed.
        perform from pcfarm.file f where f.sha256 = module for key share;
        if not found then
            raise exception 'there is no file %', substr(new.controller, 6)
                using errcode = 'invalid_parameter_value', constraint = 'job_type_controller',
                      hint = 'A module is put there before it is named: `pcfarm files put`, or '
                             '`pcfarm types set NAME --module FILE`.';
        end if;
        insert into pcfarm.job_type_module as m (job_type, sha256) values (new.name, module)
        on conflict on constraint job_type_module_pkey do update set replaced_at = null;
    end if;
    if tg_op <> 'INSERT' then
        update pcfarm.job_type_module m set replaced_at = clock_timestamp()
        where m.job_type = old.name and m.replaced_at is null and m.sha256 is distinct from module;
    end if;
    return null;
end $$;
create trigger job_type_has_module after insert or delete or update of controller on pcfarm.job_type
    for each row execute function pcfarm.job_type_has_module();

-- Begins to receive a file.
create function pcfarm.begin_file()
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    made bigint;
begin
    insert into pcfarm.file default values returning file_id into made;
    return made;
end $$;

-- Gives a file that has come its name. What was there before is kept, and this copy of it goes. Returns which is kept, and
-- whether it was there before; nothing if it took so long that it was given up.
create function pcfarm.name_file(file bigint, hash bytea, size bigint, out kept bigint, out repeated boolean)
language plpgsql as $$
begin
    perform from pcfarm.file f where f.file_id = file and f.sha256 is null for update;
    if not found then
        return;
    end if;
    loop
        -- Those who put the same wait here for the first, and whoever removes it has done so when it is locked.
        select f.file_id into kept from pcfarm.file f where f.sha256 = hash for update;
        repeated := found;
        exit when repeated;
        begin
            update pcfarm.file f set sha256 = hash, bytes = size where f.file_id = file;
            kept := file;
            exit;
        exception when unique_violation then
            null; -- Somebody else's is there now.
        end;
    end loop;
    if repeated then
        delete from pcfarm.file f where f.file_id = file;
    end if;
    update pcfarm.file f set touched_at = greatest(f.touched_at, clock_timestamp()) where f.file_id = kept;
end $$;

-- Behind what adds to it, in the same transaction, and the last thing in it: of two at a time the second counts what the first
-- has put.
create function pcfarm.check_file_bytes(whose name)
returns void language plpgsql as $$
declare
    most bigint := (select i.most_file_bytes from pcfarm.intake i);
    has  bigint;
begin
    perform pg_advisory_xact_lock(hashtext('pcfarm.file_usage'), hashtext(whose));
    select sum(u.bytes) into has from pcfarm.file_usage u where u.owner = whose;
    if has > most then
        raise exception '% would have % bytes of files, and may have %', whose, has, most
            using errcode = 'configuration_limit_exceeded', constraint = 'most_file_bytes',
                  hint = 'Remove some: `pcfarm files remove`; what jobs have made goes with them. '
                         'An administrator sets most_file_bytes in pcfarm.intake.';
    end if;
end $$;

-- All of it is here: from now on it is there, for whoever has put it.
create function pcfarm.file_is_whole(file bigint, hash bytea, size bigint, title text)
returns setof boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    whose name := pcfarm.acting_user();
    named record;
begin
    select n.* into named from pcfarm.name_file(file, hash, size) n;
    if named.kept is null then
        return;
    end if;
    insert into pcfarm.file_holder as h (file_id, owner, name, bytes) values (named.kept, whose, title, size)
    on conflict on constraint held_once do update set name = excluded.name, put_at = excluded.put_at;
    perform pcfarm.check_file_bytes(whose);
    return next named.repeated;
end $$;

-- A problem has made a file of this content, says the agent that has it in hands under a live checkout. True: its owner has
-- that content already, and it is the problem's now. False: it is to be sent. Nothing is returned if there is no such checkout.
create function pcfarm.begin_output(
    checkout bigint, secret bigint, problem bigint, title text, hash bytea, out there boolean)
returns setof boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_job pcfarm.job;
    size   bigint;
begin
    of_job := pcfarm.job_of_output(checkout, secret, problem);
    if of_job.job_id is null then
        return;
    end if;
    -- Shared: it stays while this transaction says that it is needed.
    select f.bytes into size from pcfarm.file f
    where f.sha256 = hash
        and (exists (select from pcfarm.file_holder h where h.file_id = f.file_id and h.owner = of_job.owner)
            or exists (select from pcfarm.output o where o.sha256 = hash and o.owner = of_job.owner))
    for key share;
    there := found;
    if there then
        perform pcfarm.add_output(of_job, problem, title, hash, size);
    end if;
    return next;
end $$;

-- It has come. Nothing is returned if the checkout is not live any more, or it took so long that it was given up.
create function pcfarm.output_is_whole(
    file bigint, checkout bigint, secret bigint, problem bigint, title text, hash bytea, size bigint)
returns setof boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_job pcfarm.job;
    named  record;
begin
    of_job := pcfarm.job_of_output(checkout, secret, problem);
    if of_job.job_id is null then
        return;
    end if;
    select n.* into named from pcfarm.name_file(file, hash, size) n;
    if named.kept is null then
        return;
    end if;
    perform pcfarm.add_output(of_job, problem, title, hash, size);
    return next named.repeated;
end $$;

-- Of a live checkout and a problem of it. Shared: neither the checkout nor, therefore, its job is forgotten while this transaction
-- goes on.
create function pcfarm.job_of_output(checkout bigint, secret bigint, problem bigint)
returns pcfarm.job language sql as $$
    select j.* from pcfarm.checkout c join pcfarm.job j on j.job_id = c.job_id
    where c.checkout_id = checkout and c.token = secret and c.ended_at is null
        and exists (select from pcfarm.held_problem h where h.checkout_id = checkout and h.problem_id = problem)
    for key share of c
$$;

create function pcfarm.add_output(of_job pcfarm.job, problem bigint, title text, hash bytea, size bigint)
returns void language plpgsql as $$
begin
    insert into pcfarm.output as o (job_id, problem_id, name, sha256, bytes, owner)
    values (of_job.job_id, problem, title, hash, size, of_job.owner)
    on conflict (job_id, problem_id, name) do update set sha256 = excluded.sha256, bytes = excluded.bytes;
    perform pcfarm.check_file_bytes(of_job.owner);
end $$;

-- Removes what nobody goes on sending, and files that nothing needs any more, at most ten. What is needed is said to be so once
-- an hour, so that it is kept for its time when it is needed no longer. Returns how many are gone.
create function pcfarm.forget_files()
returns integer language plpgsql as $$
declare
    keep interval := (select i.keep_files from pcfarm.intake i);
    old  bigint[];
    gone integer;
begin
    with several as (select u.owner from pcfarm.file_usage u group by u.owner having count(*) > 1),
    gone as (delete from pcfarm.file_usage u using several s where u.owner = s.owner returning u.owner, u.bytes)
    insert into pcfarm.file_usage select g.owner, sum(g.bytes) from gone g group by g.owner;
    with let_go as (
        delete from pcfarm.file_let_go l
        where l.ctid = any (array(select g.ctid from pcfarm.file_let_go g limit 10000)) returning l.sha256)
    update pcfarm.file f set touched_at = clock_timestamp()
    where f.sha256 in (select l.sha256 from let_go l)
        and not exists (select from pcfarm.output o where o.sha256 = f.sha256);
    if not pcfarm.clock_is_proven() then
        return 0;
    end if;
    -- An agent may still have a checkout from before.
    delete from pcfarm.job_type_module m where m.replaced_at < clock_timestamp() - interval '1 day';
    update pcfarm.file f set touched_at = clock_timestamp()
    where (f.sha256 in (select m.sha256 from pcfarm.job_type_module m union all select j.sha256 from pcfarm.job_file j)
            or exists (select from pcfarm.problem_file p where p.sha256 = f.sha256))
        and f.touched_at < clock_timestamp() - interval '1 hour';
    select array_agg(o.file_id) into old from (
        select f.file_id from pcfarm.file f
        where f.touched_at < clock_timestamp() - least(keep, interval '1 hour')
            and (f.sha256 is null and f.touched_at < clock_timestamp() - interval '1 hour'
                or f.sha256 is not null and f.touched_at < clock_timestamp() - keep
                    and not exists (select from pcfarm.job_type_module m where m.sha256 = f.sha256)
                    and not exists (select from pcfarm.job_file j where j.sha256 = f.sha256)
                    and not exists (select from pcfarm.problem_file p where p.sha256 = f.sha256)
                    and not exists (select from pcfarm.output o where o.sha256 = f.sha256))
        order by f.touched_at limit 10 for update skip locked) o;
    -- Nobody can begin to need them now; whoever has before is seen by this statement.
    delete from pcfarm.file f
    where f.file_id = any (old) and not exists (select from pcfarm.job_type_module m where m.sha256 = f.sha256)
        and not exists (select from pcfarm.job_file j where j.sha256 = f.sha256)
        and not exists (select from pcfarm.problem_file p where p.sha256 = f.sha256)
        and not exists (select from pcfarm.output o where o.sha256 = f.sha256);
    get diagnostics gone = row_count;
    return gone;
end $$;

-- What nobody calls by hand is nobody's to call.
revoke all on function pcfarm.begin_file(), pcfarm.name_file(bigint, bytea, bigint), pcfarm.check_file_bytes(name),
    pcfarm.file_is_whole(bigint, bytea, bigint, text), pcfarm.begin_output(bigint, bigint, bigint, text, bytea),
    pcfarm.output_is_whole(bigint, bigint, bigint, bigint, text, bytea, bigint), pcfarm.job_of_output(bigint, bigint, bigint),
    pcfarm.add_output(pcfarm.job, bigint, text, bytea, bigint), pcfarm.count_bytes_added(),
    pcfarm.count_bytes_gone(), pcfarm.output_keeps(), pcfarm.output_lets_go(), pcfarm.forget_files(), pcfarm.job_type_has_module(), pcfarm.set_job_files(bigint, jsonb),
    pcfarm.set_problem_files(bigint, bigint[]), pcfarm.files_named(bigint, bigint[]) from public;
-- To run a job once more is to read what it needs; whoever has not put a file there still cannot name it.
do $$
begin
    if exists (select from pg_roles where rolname = 'pcfarm_loader') then
        grant select on pcfarm.job_file to pcfarm_loader;
    end if;
end $$;
