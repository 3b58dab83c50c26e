-- What became of these sessions' workstations: declared dead, taken over by another connection, to be drained.
select w.workstation_id, w.session, w.state = 'dead' as dead, w.drain
from pcfarm.workstation w
where w.workstation_id = any ($1)
