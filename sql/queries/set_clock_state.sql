update pcfarm.clock c set checked_at = clock_timestamp(),
    unproven_since = case when num_nonnulls($1::timestamptz, $2::timestamptz, $3::timestamptz) > 0
        -- Never in the future of the clock as it is now.
        then least(coalesce(c.unproven_since, clock_timestamp()), clock_timestamp()) end,
    step_until = $1, difference_until = $2, stored_until = $3, step_seconds = $4::float8, difference_seconds = $5::float8,
    difference_server = $6::bigint, newest = $7::timestamptz, tolerated_seconds = $8::float8, accepted_newest = $9::timestamptz,
    stepped_at = $10::timestamptz, stepped_to = $11::timestamptz, stepped_seconds = $12::float8
