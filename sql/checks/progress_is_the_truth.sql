-- The counts that transactions keep are those of the problems.
select p.job_id, p.state, p.problems, t.problems as has, p.done, t.done as is_done, p.failed, t.failed as has_failed,
    p.in_progress, t.in_progress as is_in_progress, p.waiting, t.waiting as is_waiting, p.cancelled, t.cancelled as is_cancelled
from pcfarm.job_progress p
cross join lateral (
    select count(*) as problems, count(*) filter (where s.state = 'done') as done,
        count(*) filter (where s.state = 'failed') as failed, count(*) filter (where s.state = 'in_progress') as in_progress,
        count(*) filter (where s.state = 'waiting') as waiting, count(*) filter (where s.state = 'cancelled') as cancelled
    from pcfarm.job_problems s
    where s.job_id = p.job_id and exists (
        select from pcfarm.problem m join pcfarm.lane l on l.job_id = m.job_id and l.lane_id = m.lane_id
        where m.job_id = s.job_id and m.problem_id = s.problem_id)) t
where (p.problems, p.done, p.failed, p.in_progress, p.waiting, p.cancelled)
    is distinct from (t.problems, t.done, t.failed, t.in_progress, t.waiting, t.cancelled)
