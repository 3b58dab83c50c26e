select pcfarm.trigger_schedule_now($1, $2)
