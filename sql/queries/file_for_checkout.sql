-- A file that a live checkout needs: the module of its job type, or the one before that, or one of its job's.
select f.file_id, f.bytes
from pcfarm.checkout c
join pcfarm.file f on f.sha256 = $3
where c.checkout_id = $1 and c.token = $2 and c.ended_at is null
    and (exists (select from pcfarm.job_type_module m where m.job_type = c.job_type and m.sha256 = $3)
        or exists (select from pcfarm.job_file j where j.job_id = c.job_id and j.sha256 = $3))
