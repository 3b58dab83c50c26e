-- Takes the mark back from those that are heard again. Locked in order, as connecting does it.
with heard as materialized (
    select w.workstation_id
    from unnest($1::bigint[], $2::bigint[]) as s(workstation_id, session)
    join pcfarm.workstation w on w.workstation_id = s.workstation_id and w.session = s.session
    where w.silent_since is not null and w.state not in ('offline', 'dead')
    order by w.workstation_id
    for update of w)
update pcfarm.workstation w set silent_since = null, disconnected = false
from heard h
where w.workstation_id = h.workstation_id
