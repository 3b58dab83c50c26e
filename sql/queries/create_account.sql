with user_of_it as (
    insert into pcfarm.farm_user (name) values ($1::text::name) on conflict do nothing)
insert into pcfarm.account (user_name, role, password_hash) values ($1::text::name, $2, $3)
