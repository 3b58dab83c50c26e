-- For whoever makes an account of one's own: no name that is somebody's already, be it a role of the database's, or of jobs
-- and schedules that are there. No row: it is taken.
with user_of_it as (
    insert into pcfarm.farm_user (name)
    select $1::text::name
    where not exists (select from pg_roles r where r.rolname = $1::text::name)
        and not exists (select from pcfarm.job j where j.owner = $1::text::name)
        and not exists (select from pcfarm.schedule s where s.owner = $1::text::name)
    on conflict do nothing
    returning name)
insert into pcfarm.account (user_name, role, password_hash) select u.name, 'user', $2 from user_of_it u
returning user_name
