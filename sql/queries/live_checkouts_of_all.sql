-- Live checkouts of these workstations that are older than a grace: those their agents do not hold never arrived. By
-- workstation and nothing else, as in live_checkouts_of.
select c.checkout_id, c.workstation_id
from unnest($1::bigint[]) as asked (workstation_id)
cross join lateral (
    select c.checkout_id, c.workstation_id, c.checked_out_at from pcfarm.checkout c
    where c.workstation_id = asked.workstation_id and c.ended_at is null offset 0) c
where c.checked_out_at < clock_timestamp() - $2 * interval '1 second'
order by c.checkout_id
