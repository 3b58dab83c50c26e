-- The coming problems of a load lane, by the one index: job, lane, first order, at most so many. All are one row: to send and
-- to read a row for each costs more. Keys, and payloads' texts, in which no control character is ever bare, are separated by
-- ASCII's unit separator. A payload that is not small, as it is stored or as text, is left empty, and read by
-- coming_large_problems.sql: a running sum of sizes would cost more than all the rest of this.
-- Needs no lock: what is visible in a lane never changes.
select array_agg(p.problem_id), array_agg(p.batch_order), string_agg(p.key, e'\x1f'),
    string_agg(case when octet_length(p.payload) <= 2 * $5 then p.payload else '' end, e'\x1f'), array_agg(p.weight)
from (
    select p.problem_id, p.batch_order, p.key,
        case when pg_column_size(p.payload) <= $5 then p.payload::text else '' end as payload, p.weight
    from pcfarm.problem p
    where p.job_id = $1 and p.lane_id = $2 and p.batch_order >= $3
    order by p.batch_order, p.problem_id
    limit $4) p
