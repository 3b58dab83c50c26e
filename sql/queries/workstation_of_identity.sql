select w.workstation_id, w.session from pcfarm.workstation w where w.identity = $1
