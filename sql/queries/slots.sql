-- Slots, and the workstations that they are, as far as those have connected.
select o.hostname, o.name, o.started_at, w.state, pcfarm.selection_text(s.selection) as selection
from pcfarm.slot o
left join pcfarm.selection s on s.hostname = o.hostname || '#' || o.name
left join lateral (
    select t.state from pcfarm.workstation_status t where t.hostname = o.hostname || '#' || o.name
    order by t.workstation_id desc limit 1) w on true
order by o.hostname, o.name
