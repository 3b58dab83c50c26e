select pcfarm.forget_alerts()
