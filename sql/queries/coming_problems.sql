-- The coming problems of a load lane, by the one index: job, lane, first order, at most so many. A payload that is not small
-- is left out, and read by coming_large_problems.sql: a running sum of sizes would cost more than all the rest of this. One
-- that is compressed is not, however little is left of it.
-- Needs no lock: what is visible in a lane never changes.
select p.problem_id, p.batch_order, p.key, case when pg_column_size(p.payload) <= $5 and pg_column_compression(p.payload) is null
    then p.payload end as payload, p.weight
from pcfarm.problem p
where p.job_id = $1 and p.lane_id = $2 and p.batch_order >= $3
order by p.batch_order, p.problem_id
limit $4
