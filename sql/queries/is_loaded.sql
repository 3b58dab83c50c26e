-- Has somebody loaded or opened this job already? Asked after claim_load, in a fresh snapshot.
select j.state <> 'loading' or exists (
    select from pcfarm.lane l where l.job_id = j.job_id and l.kind = 'load')
from pcfarm.job j where j.job_id = $1
