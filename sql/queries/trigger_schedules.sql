select triggered, refused, postponed from pcfarm.trigger_schedules($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
