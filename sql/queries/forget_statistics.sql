-- Hours that nobody asks about any more.
delete from pcfarm.statistic s
where s.hour < clock_timestamp() - interval '800 days'
