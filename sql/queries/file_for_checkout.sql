-- A file that a live checkout needs: the module of its job type, or the one before that, one of its job's, or of a problem in it.
select f.file_id, f.bytes
from pcfarm.checkout c
join pcfarm.file f on f.sha256 = $3
where c.checkout_id = $1 and c.token = $2 and c.ended_at is null
    and (exists (select from pcfarm.job_type_module m where m.job_type = c.job_type and m.sha256 = $3)
        or exists (select from pcfarm.job_file j where j.job_id = c.job_id and j.sha256 = $3)
        or exists (
            select from pcfarm.held_problem h
            join pcfarm.problem_file p on p.job_id = h.job_id and p.problem_id = h.problem_id and p.sha256 = $3
            where h.checkout_id = c.checkout_id))
