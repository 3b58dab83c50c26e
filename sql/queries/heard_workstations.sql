-- Takes the mark back from those that are heard again. Locked in order, as connecting does it. Returns workstations whose rows
-- another transaction has locked: they keep the mark, and hold up no others.
with heard as materialized (
    select w.workstation_id, w.session
    from unnest($1::bigint[], $2::bigint[]) as s(workstation_id, session)
    join pcfarm.workstation w on w.workstation_id = s.workstation_id and w.session = s.session
    where w.silent_since is not null and w.state not in ('offline', 'dead')),
locked as materialized (
    select w.workstation_id
    from heard h
    join pcfarm.workstation w on w.workstation_id = h.workstation_id and w.session = h.session
    where w.silent_since is not null and w.state not in ('offline', 'dead')
    order by w.workstation_id
    for update of w skip locked),
recorded as (
    update pcfarm.workstation w set silent_since = null, disconnected = false
    from locked h
    where w.workstation_id = h.workstation_id)
select h.workstation_id from heard h
where not exists (select from locked l where l.workstation_id = h.workstation_id)
