-- State of these sessions' workstations: declared dead or recorded as offline, taken over by another connection, to be drained; what they may
-- take, and the slots that their agents are to run.
select w.workstation_id, w.session, w.state in ('offline', 'dead') as dead, w.drain, s.selection,
    r.wanted as presence,
    case when w.drain then pcfarm.drain_reason(w.drained_by, w.drained_why, w.drain_deadline) else '' end as drain_reason,
    extract(epoch from w.drain_deadline - clock_timestamp())::float8 as drain_left,
    array(select o.name from pcfarm.slot o where o.hostname = w.hostname order by o.name) as slots
from pcfarm.workstation w
left join pcfarm.selection s on s.hostname = w.hostname
left join pcfarm.presence r on r.hostname = w.hostname
where w.workstation_id = any ($1)
