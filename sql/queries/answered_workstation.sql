-- Records that the agent of this session has answered its server, which asked because another agent named the same identity.
update pcfarm.workstation set answered_at = clock_timestamp() where workstation_id = $1 and session = $2
