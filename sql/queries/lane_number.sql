select nextval('pcfarm.lane_number')
