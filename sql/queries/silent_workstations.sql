-- Marks workstations that this server does not hear, with the age of their last word and whether their connections have ended
-- ($4), under its session only. Locked in order, as connecting does it. One that was silent before its connection ended keeps
-- the time of its last word. A row that another transaction has locked is passed over, and holds up no others: the next pulse marks
-- it, or the next look at the workstations that are not connected.
with silent as materialized (
    select w.workstation_id, s.age
    from unnest($1::bigint[], $2::bigint[], $3::float8[]) as s(workstation_id, session, age)
    join pcfarm.workstation w on w.workstation_id = s.workstation_id and w.session = s.session
    where w.silent_since is null or $4 and not w.disconnected
    order by w.workstation_id
    for update of w skip locked)
update pcfarm.workstation w set silent_since = coalesce(w.silent_since, clock_timestamp() - s.age * interval '1 second'),
    disconnected = w.disconnected or $4
from silent s
where w.workstation_id = s.workstation_id
