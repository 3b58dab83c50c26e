-- Of these, those that are not there.
select i.workstation_id from unnest($1::bigint[]) as i(workstation_id)
where not exists (select from pcfarm.workstation w where w.workstation_id = i.workstation_id)
order by i.workstation_id
