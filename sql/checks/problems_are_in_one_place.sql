-- A problem without a result waits in one place or is in one workstation's hands; one with a result waits nowhere.
-- Jobs that were cancelled, or that load batch orders of one's own, are left out.
with place as (
    select p.job_id, p.problem_id, p.lane_id, p.batch_order from pcfarm.problem p
    union all
    select r.job_id, r.problem_id, r.lane_id, r.batch_order from pcfarm.requeued r),
at_places as (
    select p.job_id, p.problem_id, count(*) filter (where p.batch_order >= q.next_extraction) as waiting,
        count(*) filter (where p.batch_order < q.next_extraction and exists (
            select from pcfarm.checkout c
            where c.job_id = p.job_id and c.lane_id = p.lane_id and c.ended_at is null
                and c.from_order <= p.batch_order and p.batch_order < c.to_order
                and (c.given_back is null or p.problem_id <> all (c.given_back)))) as held
    from place p
    join pcfarm.queue_pointer q on q.job_id = p.job_id and q.lane_id = p.lane_id
    where q.job_state <> 'cancelled'
    group by p.job_id, p.problem_id),
counted as (
    select a.job_id, a.problem_id, a.held, a.waiting + case when d.problem_id is null then 0 else 1 end as waiting
    from at_places a
    left join pcfarm.delayed d on d.job_id = a.job_id and d.problem_id = a.problem_id)
select c.job_id, c.problem_id, c.waiting, c.held, r.problem_id is not null as ended
from counted c
left join pcfarm.result r on r.job_id = c.job_id and r.problem_id = c.problem_id
where case when r.problem_id is null then c.waiting + c.held <> 1 else c.waiting <> 0 end
