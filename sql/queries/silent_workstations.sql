-- Marks workstations that this server does not hear, with the age of their last word, under its session only.
update pcfarm.workstation w set silent_since = clock_timestamp() - s.age * interval '1 second'
from unnest($1::bigint[], $2::bigint[], $3::float8[]) as s(workstation_id, session, age)
where w.workstation_id = s.workstation_id and w.session = s.session and w.silent_since is null
