-- Adds triggers of schedules to the statistics of their hours, once: of several servers that come at the same time one has
-- each row.
with fresh as (
    delete from pcfarm.trigger_count c
    where c.ctid = any (array(select o.ctid from pcfarm.trigger_count o limit 20000))
    returning c.owner, c.triggered_at, c.triggers)
insert into pcfarm.trigger_statistic as s (hour, owner, triggers)
select date_trunc('hour', f.triggered_at, 'UTC'), f.owner, sum(f.triggers)
from fresh f
group by 1, 2
order by 1, 2
on conflict (hour, owner) do update set triggers = s.triggers + excluded.triggers
