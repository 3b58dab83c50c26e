-- Of one problem, each checkout was made after the one before it had ended, and none after it had its result.
select h.job_id, h.problem_id, h.checkout_id, h.checked_out_at, h.ended_before, r.accepted_at
from (
    select h.job_id, h.problem_id, h.checkout_id, c.checked_out_at,
        lag(coalesce(c.ended_at, 'infinity')) over (partition by h.job_id, h.problem_id order by h.checkout_id)
            as ended_before
    from pcfarm.held_problem h
    join pcfarm.checkout c on c.checkout_id = h.checkout_id) h
left join pcfarm.result r on r.job_id = h.job_id and r.problem_id = h.problem_id
where h.checked_out_at < h.ended_before or h.checked_out_at > r.accepted_at
