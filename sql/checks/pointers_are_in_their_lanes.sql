-- What is extracted was inserted before.
select q.job_id, q.lane_id, q.next_extraction, q.next_insertion
from pcfarm.queue_pointer q
where q.next_extraction > q.next_insertion
