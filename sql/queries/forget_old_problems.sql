select f.to_job, f.to_lane, f.gone from pcfarm.forget_old_problems(coalesce($1::bigint, 0), coalesce($2::bigint, 0)) f
