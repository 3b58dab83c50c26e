-- Writes an agent's report: its state ($3), why ($4), the sources that prove absence ($5) and its power supply ($6); how often and
-- how quickly it gave way ($7 to $9); its presence settings, if they have changed ($10); whether it goes to sleep ($11); its
-- findings about presence sources ($12). A drained workstation keeps the reason of its administrator.
update pcfarm.workstation w set state = $3, idle_source = $5, power = $6, yields = $7, yield_p50_ms = $8, yield_p99_ms = $9,
    presence = coalesce($10, w.presence), asleep = $11, presence_notes = $12,
    reason = case when w.drain and $3 = 'draining' then w.reason else $4 end,
    since = case when w.state <> $3 then clock_timestamp() else w.since end,
    cannot_tell_since = case when $5 = 'none' then coalesce(w.cannot_tell_since, clock_timestamp())
        when $5 = '' then w.cannot_tell_since end,
    cannot_tell_told = w.cannot_tell_told and $5 in ('', 'none')
where w.workstation_id = $1 and w.session = $2 and w.state not in ('offline', 'dead') and not (w.drain and $3 = 'waiting')
    and (w.state <> $3 or w.idle_source <> $5 or w.power <> $6 or w.yields is distinct from $7 or $10::jsonb is not null
        or w.asleep <> $11 or w.presence_notes <> $12
        or (w.reason <> $4 and not (w.drain and $3 = 'draining')))
