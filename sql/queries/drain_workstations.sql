-- Drains workstations ($1, each once), with a reason ($2; empty: the reason stays) and a deadline in seconds from now ($3; null:
-- the deadline stays). At the deadline the agents give back unfinished problems. Takes effect in every state but offline and dead,
-- and is remembered there. A workstation that is drained already keeps who drained it and since when. Drains none of them if one is
-- not there. Rows are locked in order, as connecting does it.
with asked as materialized (
    select w.workstation_id, w.state,
        case when w.drain then coalesce(w.drained_by, pcfarm.drainer()) else pcfarm.drainer() end as by,
        case when w.drain then coalesce(w.drained_since, w.since) else clock_timestamp() end as since,
        case when $2 <> '' then $2 when w.drain then w.drained_why else '' end as why,
        coalesce(clock_timestamp() + $3 * interval '1 second', w.drain_deadline) as deadline
    from pcfarm.workstation w
    where w.workstation_id = any ($1)
    order by w.workstation_id
    for update)
update pcfarm.workstation w set drain = true, drained_by = a.by, drained_since = a.since, drained_why = a.why,
    drain_deadline = a.deadline,
    state = case when w.state in ('offline', 'dead') then w.state else 'draining' end,
    reason = case when w.state in ('offline', 'dead') then w.reason else pcfarm.drain_reason(a.by, a.why, a.deadline) end,
    since = case when w.state in ('draining', 'offline', 'dead') then w.since else clock_timestamp() end
from asked a
where w.workstation_id = a.workstation_id and (select count(*) from asked) = cardinality($1::bigint[])
returning w.workstation_id
