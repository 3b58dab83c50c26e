-- Takes the drain of workstations ($1, each once) back. Changes a state that the drain made and no other: a suspended
-- workstation's people are still there, and an agent may be draining by itself. None of them if one is not there.
with asked as materialized (
    select w.workstation_id, w.drain and w.state = 'draining' as was_drained
    from pcfarm.workstation w
    where w.workstation_id = any ($1)
    order by w.workstation_id
    for update)
update pcfarm.workstation w set drain = false, drained_by = null, drained_since = null, drained_why = '',
    drain_deadline = null,
    state = case when a.was_drained then 'waiting' else w.state end,
    reason = case when a.was_drained then '' else w.reason end,
    since = case when a.was_drained then clock_timestamp() else w.since end
from asked a
where w.workstation_id = a.workstation_id and (select count(*) from asked) = cardinality($1::bigint[])
returning w.workstation_id
