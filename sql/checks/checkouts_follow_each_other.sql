-- Within a lane each checkout starts where the one before it ended: nothing is skipped or handed out twice.
select c.job_id, c.lane_id, c.checkout_id, c.from_order, c.starts_at
from (
    select c.job_id, c.lane_id, c.checkout_id, c.from_order,
        lag(c.to_order, 1, 0::bigint) over (partition by c.job_id, c.lane_id order by c.from_order) as starts_at
    from pcfarm.checkout c) c
where c.from_order <> c.starts_at
