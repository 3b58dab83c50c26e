select i.paused_since, i.paused_reason from pcfarm.intake i
