select t.name, t.controller, t.max_attempts, extract(epoch from t.time_limit)::float8 as time_limit_seconds,
    t.read_role, extract(epoch from t.read_time_limit)::float8 as read_time_limit_seconds,
    t.write_back is not null as writes_back,
    coalesce((select array_agg(r.name order by r.name) from pcfarm.related_read r where r.job_type = t.name), '{}') as read_names,
    coalesce((select array_agg(r.query order by r.name) from pcfarm.related_read r where r.job_type = t.name), '{}') as read_queries
from pcfarm.job_type t
