-- Problems among these whose results are stored, of checkouts that the tokens prove.
select d.checkout_id, d.problem_id
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as d (checkout_id, token, problem_id)
join pcfarm.checkout c on c.checkout_id = d.checkout_id and c.token = d.token
join pcfarm.result r on r.job_id = c.job_id and r.problem_id = d.problem_id
