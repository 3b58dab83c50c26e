-- Marks workstations whose rows name this server ($1) but that are not connected to it ($2), unless they have only just
-- connected ($3 seconds). Reads the workstations that are present, by their index. The next look marks those whose rows another
-- transaction has locked.
with gone as materialized (
    select w.workstation_id from pcfarm.workstation w
    where w.state not in ('offline', 'dead') and w.server_id = $1 and w.silent_since is null
        and not (w.workstation_id = any ($2)) and w.connected_at < clock_timestamp() - $3 * interval '1 second'
    order by w.workstation_id
    for update of w skip locked)
update pcfarm.workstation w set silent_since = clock_timestamp(), disconnected = true
from gone g
where w.workstation_id = g.workstation_id
