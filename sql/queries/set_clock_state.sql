-- Writes the state of the clock and the time ($14) that it was decided by. A time of writing would be another one if the clock steps in
-- between, and would hide the step.
update pcfarm.clock c set checked_at = $14::timestamptz,
    unproven_since = case when num_nonnulls($1::timestamptz, $2::timestamptz, $3::timestamptz) > 0
        -- Never in the future of the clock as it is now.
        then least(coalesce(c.unproven_since, $14), $14) end,
    step_until = $1, difference_until = $2, stored_until = $3, step_seconds = $4::float8, difference_seconds = $5::float8,
    difference_server = $6::bigint, newest = $7::timestamptz, tolerated_seconds = $8::float8, accepted_newest = $9::timestamptz,
    stepped_at = $10::timestamptz, stepped_to = $11::timestamptz, stepped_seconds = $12::float8, moved_seconds = $13::float8
