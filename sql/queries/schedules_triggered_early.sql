-- Due times that were triggered though they are still to come: a clock was ahead. Of each of these schedules, by its history.
select s.id, array(
    select t.due_at from pcfarm.schedule_triggers(s.id, null, 1000) t where t.due_at > clock_timestamp()) as due_ats
from unnest($1::bigint[]) as s(id)
