select checkout_id, job_id, lane_id, from_order
from pcfarm.check_out_within_limits($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
