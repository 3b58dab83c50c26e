select f.workstation_id, f.hostname from pcfarm.forget_workstations($1, $2) f order by f.workstation_id
