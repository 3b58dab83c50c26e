-- Every schedule has its next time, of its own version; its count is that of its last trigger.
select coalesce(s.schedule_id, x.schedule_id) as schedule_id, s.version, x.version as next_version
from pcfarm.schedule s
full join pcfarm.schedule_next x on x.schedule_id = s.schedule_id
left join pcfarm.schedule_tick k on k.tick_id = x.last_tick
where s.version is distinct from x.version
    or (k.tick_id is not null and x.sequence is distinct from (
        select max(u.sequence) from unnest(k.schedule_ids, k.sequences) as u(schedule_id, sequence)
        where u.schedule_id = x.schedule_id))
