-- Live checkouts to be requeued, oldest first after $1: of dead or forgotten workstations, of those that have been
-- offline for the lease ($2 seconds), and overdue ones. The last deliveries of an agent that ended in good order may wait for
-- their acceptance: the lease is their time. It counts from the last word of the agent. A workstation that fell silent asleep is
-- offline after a lease (declare_dead.sql), and does not wait for a second one.
--
-- The search starts from the workstations that are gone and from the deadlines. Looking through the live checkouts would walk past
-- every ended one while a snapshot is open. So each step leaves the planner no choice but its index. The statement takes no lock,
-- because closing checkouts locks their lanes first.
with lost as materialized (
    select c.checkout_id
    from pcfarm.workstation w
    cross join lateral (
        select c.checkout_id from pcfarm.checkout c
        where c.workstation_id = w.workstation_id and c.ended_at is null and c.checkout_id > $1
        order by c.checkout_id
        limit 200) c
    where w.state in ('offline', 'dead')
        and (w.state = 'dead' or least(w.silent_since, w.since) < statement_timestamp() - $2 * interval '1 second')
    union
    -- Handed out while it was being forgotten.
    select c.checkout_id
    from pcfarm.forgotten_workstation g
    cross join lateral (
        select c.checkout_id from pcfarm.checkout c
        where c.workstation_id = g.workstation_id and c.ended_at is null and c.checkout_id > $1
        order by c.checkout_id
        limit 200) c
    where g.forgotten_at > statement_timestamp() - interval '1 hour'
    union
    (select c.checkout_id from pcfarm.checkout c
    where c.ended_at is null and c.deadline < statement_timestamp() and c.checkout_id > $1 and (select pcfarm.time_limits_hold())
        -- Handed out before the clock stepped ahead: the deadline is so much later.
        and (c.checked_out_at > coalesce((select k.stepped_at from pcfarm.clock k), '-infinity')
            or c.deadline < statement_timestamp() - (select k.stepped_seconds * interval '1 second' from pcfarm.clock k))
    order by c.deadline
    limit 1000))
select c.checkout_id, c.workstation_id, coalesce(w.hostname, g.hostname) as hostname,
    w.workstation_id is null as forgotten, w.state = 'dead' as dead,
    w.state = 'offline' as offline
from lost l
cross join lateral (
    select c.checkout_id, c.workstation_id from pcfarm.checkout c
    where c.checkout_id = l.checkout_id and c.ended_at is null offset 0) c
left join pcfarm.workstation w on w.workstation_id = c.workstation_id
left join pcfarm.forgotten_workstation g on g.workstation_id = c.workstation_id
order by c.checkout_id
limit 200
