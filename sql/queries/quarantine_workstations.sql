select pcfarm.quarantine_workstations()
