-- No trigger of a schedule, and no due time of it, is written down twice, and each has enqueued one problem if any.
select t.schedule_id, t.due_at, count(*) as triggers
from (
    select u.schedule_id, u.due_at, u.sequence
    from pcfarm.schedule_tick k
    cross join lateral unnest(k.schedule_ids, k.due_ats, k.sequences) as u(schedule_id, due_at, sequence)) t
group by t.schedule_id, grouping sets ((t.due_at), (t.sequence))
having count(*) > 1
