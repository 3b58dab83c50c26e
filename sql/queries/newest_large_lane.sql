-- The newest lane that is large enough to change what the planner should know.
select max(l.lane_id) from pcfarm.lane l where not l.exhausted and l.problems >= 10000
