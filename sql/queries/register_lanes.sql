select pcfarm.register_lanes($1, array(
    select (l.lane_id, l.job_type, l.priority, l.later, l.problems, l.orders)::pcfarm.packed_lane
    from unnest($2::bigint[], $3::text[], $4::integer[], $5::boolean[], $6::bigint[], $7::bigint[])
        as l(lane_id, job_type, priority, later, problems, orders)), $8)
