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

-- All of it is here: from now on it is there, for whoever has put it. What was there before is kept, and this copy of it goes.
-- Nothing is returned if it took so long that it was given up.
create function pcfarm.file_is_whole(file bigint, hash bytea, size bigint, title text, out repeated boolean)
returns setof boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    whose name := pcfarm.acting_user();
    most  bigint := (select i.most_file_bytes from pcfarm.intake i);
    has   bigint;
    kept  bigint;
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
    update pcfarm.file f set touched_at = clock_timestamp() where f.file_id = kept;
    insert into pcfarm.file_holder as h (file_id, owner, name) values (kept, whose, title)
    on conflict on constraint held_once do update set name = excluded.name, put_at = excluded.put_at;
    select coalesce(sum(f.bytes), 0) into has
    from pcfarm.file_holder h join pcfarm.file f on f.file_id = h.file_id where h.owner = whose;
    if has > most then
        raise exception '% would have % bytes of files, and may have %', whose, has, most
            using errcode = 'configuration_limit_exceeded',
                  hint = 'Remove some: `pcfarm files remove`. An administrator sets most_file_bytes in pcfarm.intake.';
    end if;
    return next;
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
    -- An agent may still have a checkout from before.
    delete from pcfarm.job_type_module m where m.replaced_at < clock_timestamp() - interval '1 day';
    update pcfarm.file f set touched_at = clock_timestamp()
    where f.sha256 in (select m.sha256 from pcfarm.job_type_module m union all select j.sha256 from pcfarm.job_file j)
        and f.touched_at < clock_timestamp() - interval '1 hour';
    select array_agg(o.file_id) into old from (
        select f.file_id from pcfarm.file f
        where f.touched_at < clock_timestamp() - least(keep, interval '1 hour')
            and (f.sha256 is null and f.touched_at < clock_timestamp() - interval '1 hour'
                or f.sha256 is not null and f.touched_at < clock_timestamp() - keep
                    and not exists (select from pcfarm.job_type_module m where m.sha256 = f.sha256)
                    and not exists (select from pcfarm.job_file j where j.sha256 = f.sha256))
        order by f.touched_at limit 10 for update skip locked) o;
    -- Nobody can begin to need them now; whoever has before is seen by this statement.
    delete from pcfarm.file f
    where f.file_id = any (old) and not exists (select from pcfarm.job_type_module m where m.sha256 = f.sha256)
        and not exists (select from pcfarm.job_file j where j.sha256 = f.sha256);
    get diagnostics gone = row_count;
    return gone;
end $$;

-- What nobody calls by hand is nobody's to call.
revoke all on function pcfarm.begin_file(), pcfarm.file_is_whole(bigint, bytea, bigint, text), pcfarm.forget_files(),
    pcfarm.job_type_has_module(), pcfarm.set_job_files(bigint, jsonb) from public;
