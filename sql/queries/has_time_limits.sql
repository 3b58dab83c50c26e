-- Returns whether a job ($1) or a workstation ($2) has live checkouts with a time limit; 0: not asked for.
select exists (
        select from pcfarm.checkout c where c.job_id = $1 and c.ended_at is null and c.deadline is not null)
    or exists (
        select from pcfarm.checkout c where c.workstation_id = $2 and c.ended_at is null and c.deadline is not null)
