-- What these workstations hold, as the database has it. By workstation and nothing else: on a farm that was analysed while
-- empty every index of live checkouts seems equally cheap.
select c.workstation_id, c.checkout_id, c.token
from unnest($1::bigint[]) as asked (workstation_id)
cross join lateral (
    select c.workstation_id, c.checkout_id, c.token from pcfarm.checkout c
    where c.workstation_id = asked.workstation_id and c.ended_at is null offset 0) c
order by c.workstation_id, c.checkout_id
