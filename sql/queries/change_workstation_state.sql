update pcfarm.workstation w set state = $3, reason = $4, since = clock_timestamp()
where w.workstation_id = $1 and w.session = $2 and w.state <> 'dead' and (w.state <> $3 or w.reason <> $4)
    and not (w.drain and $3 = 'waiting')
