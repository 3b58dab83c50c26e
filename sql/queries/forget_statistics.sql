-- Hours that nobody asks about any more.
with triggers as (delete from pcfarm.trigger_statistic t where t.hour < clock_timestamp() - interval '800 days')
delete from pcfarm.statistic s
where s.hour < clock_timestamp() - interval '800 days'
