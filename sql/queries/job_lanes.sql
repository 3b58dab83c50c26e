select q.lane_id, q.kind, q.job_type, q.next_extraction, q.next_insertion, q.problems
from pcfarm.queue_pointer q
where q.job_id = $1
order by q.lane_id
limit 1000
