-- As coming_problems.sql, of any size: at most so many problems and so many bytes, and never less than one problem.
select s.problem_id, s.batch_order, s.key, s.payload, s.weight, s.looked_at
from (
    select p.problem_id, p.batch_order, p.key, p.payload, p.weight, count(*) over () as looked_at,
        sum(pg_column_size(p.payload)) over (order by p.batch_order, p.problem_id rows unbounded preceding)
            - pg_column_size(p.payload) as bytes_before
    from (
        select p.problem_id, p.batch_order, p.key, p.payload, p.weight
        from pcfarm.problem p
        where p.job_id = $1 and p.lane_id = $2 and p.batch_order >= $3
        order by p.batch_order, p.problem_id
        limit $4) p) s
where s.bytes_before < $5
order by s.batch_order, s.problem_id
