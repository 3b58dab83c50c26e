-- A job type for each program of worker.toml.
select pcfarm.create_job_type('primes', 'exec:primes', '{"time_limit": "5 min"}');
select pcfarm.create_job_type('lines', 'exec:lines', '{"time_limit": "5 min"}');
select pcfarm.create_job_type('minisat', 'exec:minisat', '{"time_limit": "10 min", "max_attempts": 2}');
