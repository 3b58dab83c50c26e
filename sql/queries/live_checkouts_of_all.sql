-- Live checkouts of these workstations that are older than a grace: those their agents do not hold never arrived.
select c.checkout_id, c.workstation_id from pcfarm.checkout c
where c.workstation_id = any ($1) and c.ended_at is null
    and c.checked_out_at < clock_timestamp() - $2 * interval '1 second'
order by c.checkout_id
