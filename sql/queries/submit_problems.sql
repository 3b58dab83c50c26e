-- A whole small submission: one call, and so one transaction and one commit.
select s.into_job, s.repeated from pcfarm.submit_problems($1, $2, $3, $4, $5, $6, $7, $8) s
