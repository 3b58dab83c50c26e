-- Live checkouts in dead hands, whenever they got there, and overdue ones, oldest first after $1. Takes no lock:
-- closing them locks their lanes first.
select c.checkout_id, c.workstation_id, w.hostname, w.state = 'dead' as dead
from pcfarm.checkout c
join pcfarm.workstation w on w.workstation_id = c.workstation_id
where c.ended_at is null and c.checkout_id > $1 and (w.state = 'dead' or c.deadline < clock_timestamp())
order by c.checkout_id
limit 200
