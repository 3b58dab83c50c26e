-- What became of these sessions' workstations: declared dead, taken over by another connection, to be drained; and
-- what they may take.
select w.workstation_id, w.session, w.state = 'dead' as dead, w.drain, s.selection
from pcfarm.workstation w
left join pcfarm.selection s on s.hostname = w.hostname
where w.workstation_id = any ($1)
