-- Pauses the loading of what is stored, or goes on with it.
with said as (
    update pcfarm.intake i set paused_since = case when $1 then coalesce(i.paused_since, clock_timestamp()) end,
        paused_reason = case when $1 then $2::text else '' end
    returning 1)
select pg_notify('pcfarm', 'work') from said
