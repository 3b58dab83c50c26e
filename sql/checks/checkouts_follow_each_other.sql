-- Within a lane each checkout starts where the one before it ended: nothing is skipped or handed out twice. In the retry lane of
-- a standing job those before it may have been forgotten.
select c.job_id, c.lane_id, c.checkout_id, c.from_order, c.starts_at
from (
    select c.job_id, c.lane_id, c.checkout_id, c.from_order, l.kind = 'retry' and j.standing as may_have_gaps,
        lag(c.to_order, 1, 0::bigint) over (partition by c.job_id, c.lane_id order by c.from_order) as starts_at
    from pcfarm.checkout c
    join pcfarm.job j on j.job_id = c.job_id
    join pcfarm.lane l on l.job_id = c.job_id and l.lane_id = c.lane_id) c
where case when c.may_have_gaps then c.from_order < c.starts_at else c.from_order <> c.starts_at end
