-- Where a lane stands: the end of its newest checkout.
select coalesce((
    select c.to_order from pcfarm.checkout c
    where c.job_id = $1 and c.lane_id = $2 order by c.from_order desc limit 1), 0) as next_extraction
