-- A checkout's two numbers are those of its problems and, while it lives, of the results that came under it.
select c.job_id, c.checkout_id, c.problems, h.problems as holds, c.delivered, h.delivered as has
from pcfarm.checkout c
cross join lateral (
    select count(*) as problems, count(r.problem_id) as delivered
    from pcfarm.held_problem h
    left join pcfarm.result r
        on r.job_id = h.job_id and r.problem_id = h.problem_id and r.checkout_id = h.checkout_id
    where h.checkout_id = c.checkout_id) h
where c.problems <> h.problems or (c.ended_at is null and c.delivered <> h.delivered)
