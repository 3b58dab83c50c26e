update pcfarm.workstation w set drain = $2,
    state = case when w.state = 'dead' then 'dead' when $2 then 'draining' else 'waiting' end,
    reason = case when w.state = 'dead' then w.reason when $2 then 'drained by an administrator' else '' end,
    since = clock_timestamp()
where w.workstation_id = $1
returning w.workstation_id
