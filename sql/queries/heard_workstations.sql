-- Takes the mark back from those that are heard again.
update pcfarm.workstation w set silent_since = null
from unnest($1::bigint[], $2::bigint[]) as s(workstation_id, session)
where w.workstation_id = s.workstation_id and w.session = s.session and w.silent_since is not null
    and w.state <> 'dead'
