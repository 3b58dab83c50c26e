-- A drain takes effect in every state but dead, and is remembered there. Undoing it changes a state that the drain made
-- and no other: a suspended workstation's people are still there, and an agent may be draining by itself.
update pcfarm.workstation w set drain = $2,
    state = case when $2 and w.state <> 'dead' then 'draining' when w.drain and w.state = 'draining' then 'waiting'
                 else w.state end,
    reason = case when $2 and w.state <> 'dead' then 'drained by an administrator'
                  when not $2 and w.drain and w.state = 'draining' then '' else w.reason end,
    since = case when $2 and w.state not in ('draining', 'dead') or not $2 and w.drain and w.state = 'draining'
                 then clock_timestamp() else w.since end
where w.workstation_id = $1
returning w.workstation_id
