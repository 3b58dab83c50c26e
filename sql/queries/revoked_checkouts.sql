-- Which of these have been revoked, and why.
select c.checkout_id, c.reason from pcfarm.checkout c
where c.checkout_id = any ($1) and c.ending = 'revoked'
