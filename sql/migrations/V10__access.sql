-- Who may come: accounts of users, the tokens that their programs show, and the credentials of workstations. Secrets are
-- kept as hashes alone. Servers remember for a second at most what they have read here.

-- A user of the farm who may log in. Users who come by SQL alone have none: their role in the database says who they are.
create table pcfarm.account (
    user_name     name primary key references pcfarm.farm_user on delete cascade
                  constraint account_name check (user_name::text ~ '^[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}$'),
    role          text not null default 'user' constraint account_role check (role in ('user', 'operator', 'administrator')),
    -- Argon2id, in the form that names its parameters; null: it has tokens alone.
    password_hash text constraint password_is_hashed check (starts_with(password_hash, '$argon2id$')),
    created_at    timestamptz not null default clock_timestamp(),
    disabled_at   timestamptz
);

create table pcfarm.api_token (
    token_id     bigint generated always as identity primary key,
    user_name    name not null references pcfarm.account on delete cascade,
    name         text not null constraint token_name_length check (length(name) between 1 and 100),
    -- SHA-256: 256 random bits are not guessed, however quick the hash is.
    hash         bytea not null unique constraint hash_is_sha256 check (octet_length(hash) = 32),
    -- A login gave it: revoked when the password changes.
    by_login     boolean not null default false,
    scopes       text[] not null constraint token_scopes
                 check (scopes <@ array['submit', 'operate', 'administer', 'work'] and scopes <> '{}'),
    -- The token by which its own user has made it: it ends no later, and is revoked with it. Null: a login has, or an
    -- administrator for somebody else.
    made_by      bigint references pcfarm.api_token on delete cascade,
    created_at   timestamptz not null default clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    -- The day is enough, and is one write a day.
    last_used_on date
);
create index api_token_by_user on pcfarm.api_token (user_name, token_id);
create index api_token_by_maker on pcfarm.api_token (made_by) where made_by is not null;

-- Whatever revokes a token revokes what was made by it, and so on. Whoever makes one holds its maker's row until then
-- (create_token.sql): none comes afterwards.
create function pcfarm.revoke_made_tokens()
returns trigger language plpgsql as $$
begin
    update pcfarm.api_token t set revoked_at = new.revoked_at where t.made_by = new.token_id and t.revoked_at is null;
    return null;
end $$;
create trigger revoke_made after update of revoked_at on pcfarm.api_token for each row
    when (old.revoked_at is null and new.revoked_at is not null) execute function pcfarm.revoke_made_tokens();

-- Lets workstations in, each once. Counted down in one statement: of two that come for the last use one gets it.
create table pcfarm.join_token (
    join_token_id bigint generated always as identity primary key,
    hash          bytea not null unique constraint hash_is_sha256 check (octet_length(hash) = 32),
    created_by    name not null default pcfarm.acting_user(),
    created_at    timestamptz not null default clock_timestamp(),
    expires_at    timestamptz not null,
    uses_left     integer not null constraint uses_left_not_negative check (uses_left >= 0),
    used          integer not null default 0,
    revoked_at    timestamptz
);

-- A workstation that has certificates. Its identity is what its agent made at its first start.
create table pcfarm.workstation_credential (
    identity      uuid primary key,
    hostname      text not null,
    join_token_id bigint,
    joined_at     timestamptz not null default clock_timestamp(),
    -- SHA-256 of its public key: whoever renews has the key that has joined.
    key           bytea not null constraint key_is_sha256 check (octet_length(key) = 32),
    -- Of its newest certificate.
    serial        bytea not null,
    issued_at     timestamptz not null default clock_timestamp(),
    expires_at    timestamptz not null,
    -- From then on none of its certificates is worth anything, on any server.
    revoked_at    timestamptz
);

-- A use for a workstation that has not joined with this token yet: its answer may have been lost, and it comes again. False:
-- the token is none, or the workstation was cut off.
create function pcfarm.join_workstation(
    token_hash bytea, of_identity uuid, of_hostname text, of_serial bytea, of_key bytea, until timestamptz)
returns boolean language plpgsql as $$
declare
    by_token bigint;
begin
    update pcfarm.join_token t set uses_left = t.uses_left - n.uses, used = t.used + n.uses
    from (
        select k.join_token_id, case when exists (
            select from pcfarm.workstation_credential c
            where c.identity = of_identity and c.join_token_id = k.join_token_id and c.key = of_key) then 0 else 1 end as uses
        from pcfarm.join_token k where k.hash = token_hash) n
    where t.join_token_id = n.join_token_id and t.revoked_at is null and t.expires_at > clock_timestamp()
        and t.uses_left >= n.uses
        and not exists (
            select from pcfarm.workstation_credential c where c.identity = of_identity and c.revoked_at is not null)
    returning t.join_token_id into by_token;
    if by_token is null then
        return false;
    end if;
    insert into pcfarm.workstation_credential as c (identity, hostname, join_token_id, key, serial, expires_at)
    values (of_identity, of_hostname, by_token, of_key, of_serial, until)
    on conflict (identity) do update set hostname = excluded.hostname, join_token_id = excluded.join_token_id,
        key = excluded.key, serial = excluded.serial, issued_at = clock_timestamp(), expires_at = excluded.expires_at
    where c.revoked_at is null;
    return found;
end $$;

-- What was changed in who may come, and by whom.
create function pcfarm.note_access()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    is_now  jsonb := to_jsonb(new);
    was jsonb := case when tg_op = 'UPDATE' then to_jsonb(old) end;
begin
    insert into pcfarm.event (what, subject, details)
    values (tg_argv[0] || ' ' || case
            when tg_op = 'INSERT' then 'created'
            when is_now ->> 'revoked_at' is distinct from was ->> 'revoked_at' then 'revoked'
            when is_now ->> 'disabled_at' is distinct from was ->> 'disabled_at' then
                case when is_now ->> 'disabled_at' is null then 'enabled' else 'disabled' end
            when is_now ->> 'password_hash' is distinct from was ->> 'password_hash' then 'password set'
            else 'changed' end,
        is_now ->> tg_argv[1],
        jsonb_strip_nulls(jsonb_build_object('name', is_now -> 'name', 'role', is_now -> 'role', 'scopes', is_now -> 'scopes',
            'identity', is_now -> 'identity', 'expires_at', is_now -> 'expires_at')));
    return null;
end $$;
create trigger note_creation after insert on pcfarm.account
    for each row execute function pcfarm.note_access('account', 'user_name');
create trigger note_change after update on pcfarm.account
    for each row execute function pcfarm.note_access('account', 'user_name');
create trigger note_creation after insert on pcfarm.api_token
    for each row execute function pcfarm.note_access('token', 'user_name');
create trigger note_change after update of revoked_at on pcfarm.api_token
    for each row execute function pcfarm.note_access('token', 'user_name');
create trigger note_creation after insert on pcfarm.join_token
    for each row execute function pcfarm.note_access('join token', 'join_token_id');
create trigger note_change after update of revoked_at on pcfarm.join_token
    for each row execute function pcfarm.note_access('join token', 'join_token_id');
create trigger note_creation after insert on pcfarm.workstation_credential
    for each row execute function pcfarm.note_access('credential', 'hostname');
create trigger note_change after update of revoked_at on pcfarm.workstation_credential
    for each row execute function pcfarm.note_access('credential', 'hostname');

-- Servers forget what they remember.
create function pcfarm.notify_access()
returns trigger language plpgsql as $$
begin
    perform pg_notify('pcfarm', 'access');
    return null;
end $$;
create trigger notify_change after insert or update or delete on pcfarm.account
    for each statement execute function pcfarm.notify_access();
create trigger notify_change after update of revoked_at, scopes, expires_at on pcfarm.api_token
    for each statement execute function pcfarm.notify_access();
create trigger notify_removal after delete on pcfarm.api_token for each statement execute function pcfarm.notify_access();
create trigger notify_change after update of revoked_at on pcfarm.workstation_credential
    for each statement execute function pcfarm.notify_access();
create trigger notify_removal after delete on pcfarm.workstation_credential
    for each statement execute function pcfarm.notify_access();

revoke all on routine pcfarm.notify_access() from public;
revoke all on routine pcfarm.note_access() from public;
revoke all on routine pcfarm.revoke_made_tokens() from public;
revoke all on routine pcfarm.join_workstation(bytea, uuid, text, bytea, bytea, timestamptz) from public;
