-- What an agent says: its state ($3), why ($4), what it tells absence by ($5) and what it runs on ($6). Of one that is drained
-- its administrator has said why.
update pcfarm.workstation w set state = $3, idle_source = $5, power = $6,
    reason = case when w.drain and $3 = 'draining' then w.reason else $4 end,
    since = case when w.state <> $3 then clock_timestamp() else w.since end
where w.workstation_id = $1 and w.session = $2 and w.state <> 'dead' and not (w.drain and $3 = 'waiting')
    and (w.state <> $3 or w.idle_source <> $5 or w.power <> $6 or (w.reason <> $4 and not (w.drain and $3 = 'draining')))
