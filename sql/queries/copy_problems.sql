copy pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload) from stdin (format binary)
