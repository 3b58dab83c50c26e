-- Of these jobs, those that are empty end: in one transaction, so that a thousand small jobs do not wait for a thousand
-- commits. Each call looks in a snapshot of its own, and passes over a job that somebody else has locked. Those that wait for
-- one that ends may be over with it.
select j.job_id, e.state, array(select a.job_id from pcfarm.job_after a where a.after_job = j.job_id) as waiting
from unnest($1::bigint[]) with ordinality as j(job_id, n)
cross join lateral (select pcfarm.end_job_if_empty(j.job_id) as state offset 0) e
where e.state is not null
order by j.n
