-- Problems among these whose results are stored, of checkouts that the tokens prove. Each is looked up by key.
select d.checkout_id, d.problem_id
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as d (checkout_id, token, problem_id)
cross join lateral (
    select c.job_id from pcfarm.checkout c where c.checkout_id = d.checkout_id and c.token = d.token offset 0) c
cross join lateral (
    select r.problem_id from pcfarm.result r where r.job_id = c.job_id and r.problem_id = d.problem_id offset 0) r
