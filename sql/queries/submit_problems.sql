-- A whole small submission: one call, and so one transaction and one commit. Most are plain, and never come here.
select s.into_job, s.repeated, s.into_lane, s.stored, (s.facts).owner::text, (s.facts).name, (s.facts).job_type, (s.facts).priority,
    (s.facts).deadline, (s.facts).parameters, coalesce((s.facts).ready, false) as ready,
    (s.facts).trace_parent, s.checkout
from pcfarm.submit_problems($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) s
