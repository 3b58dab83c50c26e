-- The same of lane 0, by problem id alone.
select s.problem_id, s.batch_order, s.key, s.failed, s.message, s.solution
from (
    select p.problem_id, p.batch_order, p.key, r.failed, r.message, r.solution,
        sum(coalesce(pg_column_size(r.solution), 0))
            over (order by p.problem_id rows between unbounded preceding and 1 preceding) as bytes_before
    from (
        select p.problem_id, coalesce(p.batch_order, 0) as batch_order, p.key from pcfarm.problem p
        where p.job_id = $1 and p.lane_id = 0 and p.problem_id > $2
        order by p.problem_id
        limit $3) p
    left join lateral (
        select r.failed, r.message, r.solution from pcfarm.result r
        where r.job_id = $1 and r.problem_id = p.problem_id limit 1) r on true) s
where coalesce(s.bytes_before, 0) < $4
order by s.problem_id
