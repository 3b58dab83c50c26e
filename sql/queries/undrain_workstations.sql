-- Takes the drain of workstations ($1, each once) back; those in quarantine stay there unless they are released ($2). Changes a
-- state that the drain made and no other: a suspended workstation's people are still there, and an agent may be draining by itself.
-- None of them if one is not there.
with asked as materialized (
    select w.workstation_id, w.drain and w.state = 'draining' as was_drained, w.quarantine is not null as was_quarantined,
        w.quarantine is null or $2 as ends
    from pcfarm.workstation w
    where w.workstation_id = any ($1)
    order by w.workstation_id
    for update)
update pcfarm.workstation w set
    drain = w.drain and not a.ends,
    drained_by = case when not a.ends then w.drained_by end,
    drained_since = case when not a.ends then w.drained_since end,
    drained_why = case when a.ends then '' else w.drained_why end,
    drain_deadline = case when not a.ends then w.drain_deadline end,
    quarantine = case when not a.ends then w.quarantine end,
    trusted_since = case when a.ends and a.was_quarantined then clock_timestamp() else w.trusted_since end,
    state = case when a.ends and a.was_drained then 'waiting' else w.state end,
    reason = case when a.ends and a.was_drained then '' else w.reason end,
    since = case when a.ends and a.was_drained then clock_timestamp() else w.since end
from asked a
where w.workstation_id = a.workstation_id and (select count(*) from asked) = cardinality($1::bigint[])
returning w.workstation_id
