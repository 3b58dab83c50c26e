select pcfarm.retry_alert($1)
