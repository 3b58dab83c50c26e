-- Servers that run, and those that stopped without a word within a day.
select s.server_id, s.name, s.address, s.started_at, s.heard_at,
    s.heard_at > clock_timestamp() - $1 * interval '1 second' as live
from pcfarm.server s
where s.stopped_at is null and s.heard_at > clock_timestamp() - interval '1 day'
order by s.server_id
limit 1000
