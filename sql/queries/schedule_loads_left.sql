select exists (select from pcfarm.schedule_load l where l.job_id = $1 and l.loaded_at is null)
