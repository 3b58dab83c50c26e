-- What administrators want to remember about workstations ($1, each once). None of them if one is not there.
with asked as materialized (
    select w.workstation_id from pcfarm.workstation w
    where w.workstation_id = any ($1)
    order by w.workstation_id
    for update)
update pcfarm.workstation w set note = $2
from asked a
where w.workstation_id = a.workstation_id and (select count(*) from asked) = cardinality($1::bigint[])
returning w.workstation_id
