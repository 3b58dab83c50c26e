-- What these workstations hold, as the database has it.
select c.workstation_id, c.checkout_id, c.token from pcfarm.checkout c
where c.workstation_id = any ($1) and c.ended_at is null
order by c.workstation_id, c.checkout_id
