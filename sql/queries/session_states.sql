-- State of these sessions' workstations: dead or offline, drain, selection, presence settings, and the slots that each agent is to
-- run. The session differs after another connection took the workstation over.
select w.workstation_id, w.session, w.state in ('offline', 'dead') as dead, w.drain, s.selection,
    r.wanted as presence,
    case when w.drain then pcfarm.drain_reason(w.drained_by, w.drained_why, w.drain_deadline) else '' end as drain_reason,
    extract(epoch from w.drain_deadline - clock_timestamp())::float8 as drain_left,
    array(select o.name from pcfarm.slot o where o.hostname = w.hostname order by o.name) as slots
from pcfarm.workstation w
left join pcfarm.selection s on s.hostname = w.hostname
left join pcfarm.presence r on r.hostname = w.hostname
where w.workstation_id = any ($1)
