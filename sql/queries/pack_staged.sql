select l.lane_id, l.job_type, l.priority, l.later, l.problems, l.orders
from unnest(pcfarm.pack_staged($1, $2, $3)) l
