-- Due times of each of these schedules that were triggered although they are still to come: a clock was ahead. Taken from their
-- history.
select s.id, array(
    select t.due_at from pcfarm.schedule_triggers(s.id, null, 1000) t where t.due_at > clock_timestamp()) as due_ats
from unnest($1::bigint[]) as s(id)
