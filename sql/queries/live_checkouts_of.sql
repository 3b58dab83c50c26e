select c.checkout_id, c.token from pcfarm.checkout c
where c.workstation_id = $1 and c.ended_at is null
order by c.checkout_id
