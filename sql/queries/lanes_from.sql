-- Lanes of load whose problems come at or after a lane, in problem id order; by the primary key.
select l.lane_id from pcfarm.lane l
where l.job_id = $1 and l.lane_id >= $2 and l.kind in ('load', 'later')
order by l.lane_id
limit 1000
