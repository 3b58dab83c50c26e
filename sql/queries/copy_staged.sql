copy pg_temp.pcfarm_staged (number, member_of, key, payload, job_type, priority, deadline, not_before, weight) from stdin (format binary)
