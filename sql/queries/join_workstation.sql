select pcfarm.join_workstation($1, $2, $3, $4, $5, $6)
