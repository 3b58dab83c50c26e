-- Hours that nobody asks about any more.
with triggers as (
    delete from pcfarm.trigger_statistic t
    where t.hour < clock_timestamp() - interval '800 days' and (select pcfarm.clock_is_proven()))
delete from pcfarm.statistic s
where s.hour < clock_timestamp() - interval '800 days' and (select pcfarm.clock_is_proven())
