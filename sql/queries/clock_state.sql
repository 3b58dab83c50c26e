-- State of the clock, locked until the transaction ends, and whether the server whose clock differs runs: a server that was killed has
-- not stopped, but its pulse has. The newest stored times, but for the row of this server ($1), are read at its first look ($2): of all, and
-- of those until now. Times in the future, such as those of events about a clock that is ahead, do not hide that the farm was off.
select c.*, clock_timestamp() as now,
    coalesce(d.stopped_at is null and d.heard_at > clock_timestamp() - interval '1 minute', false) as difference_server_runs,
    case when $2::boolean then greatest(
        (select max(s.heard_at) from pcfarm.server s where s.server_id <> $1::bigint),
        (select e.happened_at from pcfarm.event e order by e.happened_at desc limit 1)) end as newest_of_all,
    case when $2::boolean then greatest(
        (select max(s.heard_at) from pcfarm.server s where s.server_id <> $1::bigint and s.heard_at <= statement_timestamp()),
        (select e.happened_at from pcfarm.event e where e.happened_at <= statement_timestamp() order by e.happened_at desc limit 1))
        end as newest_until_now
from pcfarm.clock c
left join pcfarm.server d on d.server_id = c.difference_server
for update of c
