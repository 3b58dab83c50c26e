-- In a lane of load problem ids and batch orders rise together: the largest batch order whose convoy does not begin
-- behind a problem id, by bisection over the one index.
with recursive search(low, high) as (
    select 0::bigint, l.next_insertion from pcfarm.lane l where l.job_id = $1 and l.lane_id = $2
    union all
    select case when f.problem_id <= $3 then m.middle else s.low end,
        case when f.problem_id <= $3 then s.high else m.middle end
    from search s
    cross join lateral (select (s.low + s.high) / 2 as middle) m
    left join lateral (
        select p.problem_id from pcfarm.problem p
        where p.job_id = $1 and p.lane_id = $2 and p.batch_order >= m.middle
        order by p.batch_order, p.problem_id
        limit 1) f on true
    where s.high - s.low > 1)
select s.low from search s order by s.high - s.low limit 1
