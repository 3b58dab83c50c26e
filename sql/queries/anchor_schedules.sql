-- Lets the intervals of these schedules ($1) count from a moment ($2): a clock that was ahead wrote a later one. Locks as triggering and
-- changing do. Servers read a definition again when its version has changed. Returns those that were changed.
with locked as materialized (
    select x.schedule_id from pcfarm.schedule_next x where x.schedule_id = any ($1)
    order by x.schedule_id
    for update skip locked),
anchored as (
    update pcfarm.schedule s set anchored_at = $2, version = s.version + 1
    where s.schedule_id in (select l.schedule_id from locked l) and s.anchored_at > $2
    returning s.schedule_id, s.version)
update pcfarm.schedule_next x set version = a.version
from anchored a
where x.schedule_id = a.schedule_id
returning x.schedule_id
