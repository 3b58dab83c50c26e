select pcfarm.sweep_alerts($1)
