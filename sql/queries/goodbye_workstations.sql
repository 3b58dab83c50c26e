-- Records that the agents of these workstations have ended in good order, and why, under the session given with each. Rows are
-- locked in order, as connecting does it. Returns workstations whose rows another transaction has locked: their record is still to
-- come, and holds up no others. Problems that they have not delivered or given back come back after a lease (lost_checkouts.sql),
-- which begins with this word, also after a silence.
with ended as materialized (
    select w.workstation_id, w.session, g.reason, g.asleep
    from unnest($1::bigint[], $2::bigint[], $3::text[], $4::boolean[]) as g(workstation_id, session, reason, asleep)
    join pcfarm.workstation w on w.workstation_id = g.workstation_id and w.session = g.session
    where w.state not in ('offline', 'dead')),
locked as materialized (
    select w.workstation_id, e.reason, e.asleep
    from ended e
    join pcfarm.workstation w on w.workstation_id = e.workstation_id and w.session = e.session
    where w.state not in ('offline', 'dead')
    order by w.workstation_id
    for update of w skip locked),
recorded as (
    update pcfarm.workstation w set state = 'offline', since = clock_timestamp(), reason = e.reason,
        silent_since = clock_timestamp(), disconnected = true, asleep = w.asleep or e.asleep
    from locked e
    where w.workstation_id = e.workstation_id)
select e.workstation_id from ended e
where not exists (select from locked l where l.workstation_id = e.workstation_id)
