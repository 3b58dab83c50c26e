-- The same of a retry lane, of any size; the problems' rows are found at their homes by the dispatch index.
select s.problem_id, s.batch_order, s.key, s.payload, s.attempts, s.alone, s.grouped, s.home_lane, s.home_order, s.weight,
    s.looked_at
from (
    select r.problem_id, r.batch_order, p.key, p.payload, r.attempts, r.alone, r.grouped, r.home_lane, r.home_order, p.weight,
        count(*) over () as looked_at,
        sum(pg_column_size(p.payload)) over (order by r.batch_order, r.problem_id rows unbounded preceding)
            - pg_column_size(p.payload) as bytes_before
    from (
        select r.job_id, r.problem_id, r.batch_order, r.attempts, r.alone, r.grouped, r.home_lane, r.home_order
        from pcfarm.requeued r
        where r.job_id = $1 and r.lane_id = $2 and r.batch_order >= $3
        order by r.batch_order, r.problem_id
        limit $4) r
    -- One by one: to hash all of the job for a few of its problems looks cheaper if much of it has come back.
    cross join lateral (
        select p.key, p.payload, p.weight from pcfarm.problem p
        where p.job_id = r.job_id and p.lane_id = r.home_lane and p.batch_order = r.home_order and p.problem_id = r.problem_id
        offset 0) p) s
where s.bytes_before < $5
order by s.batch_order, s.problem_id
