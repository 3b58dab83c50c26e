-- Marks workstations that this server does not hear, with the age of their last word, under its session only. Locked in
-- order, as connecting does it.
with silent as materialized (
    select w.workstation_id, s.age
    from unnest($1::bigint[], $2::bigint[], $3::float8[]) as s(workstation_id, session, age)
    join pcfarm.workstation w on w.workstation_id = s.workstation_id and w.session = s.session
    where w.silent_since is null
    order by w.workstation_id
    for update of w)
update pcfarm.workstation w set silent_since = clock_timestamp() - s.age * interval '1 second'
from silent s
where w.workstation_id = s.workstation_id
