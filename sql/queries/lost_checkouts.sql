-- Live checkouts in dead hands, whenever they got there, and overdue ones, oldest first after $1. Starts from the dead
-- workstations and from the deadlines, never from the live checkouts: while somebody's snapshot is open, looking through
-- those walks past every one that has ended. So each step leaves the planner no choice but its index. Takes no lock: closing
-- them locks their lanes first.
with lost as materialized (
    select c.checkout_id
    from pcfarm.workstation w
    cross join lateral (
        select c.checkout_id from pcfarm.checkout c
        where c.workstation_id = w.workstation_id and c.ended_at is null and c.checkout_id > $1
        order by c.checkout_id
        limit 200) c
    where w.state = 'dead'
    union
    (select c.checkout_id from pcfarm.checkout c
    where c.ended_at is null and c.deadline < statement_timestamp() and c.checkout_id > $1
    order by c.deadline
    limit 1000))
select c.checkout_id, c.workstation_id, w.hostname, w.state = 'dead' as dead
from lost l
cross join lateral (
    select c.checkout_id, c.workstation_id from pcfarm.checkout c
    where c.checkout_id = l.checkout_id and c.ended_at is null offset 0) c
join pcfarm.workstation w on w.workstation_id = c.workstation_id
order by c.checkout_id
limit 200
