-- Job types by name, one of them if it is named, with all that is said about them. Lengths of time are in seconds.
select t.name, t.controller, t.description, t.default_priority,
    extract(epoch from t.default_duration)::float8 as default_duration, t.max_attempts,
    extract(epoch from t.time_limit)::float8 as time_limit, extract(epoch from t.retry_delay)::float8 as retry_delay,
    extract(epoch from t.retry_delay_limit)::float8 as retry_delay_limit, t.retry_first, t.keep_results,
    extract(epoch from t.retention)::float8 as retention, t.labels, pcfarm.conditions(t.requirement) as require, n.names as resources, n.tokens,
    t.read_role::text as read_role, extract(epoch from t.read_time_limit)::float8 as read_time_limit,
    r.names as read_names, r.queries as read_queries, t.write_role::text as write_role, t.write_back,
    t.suspended_since, t.suspended_reason, pcfarm.version_of('job type', t.name) as version
from pcfarm.job_type t
cross join lateral (
    select coalesce(array_agg(n.resource order by n.resource), '{}') as names,
        coalesce(array_agg(n.tokens order by n.resource), '{}') as tokens
    from pcfarm.job_type_resource n where n.job_type = t.name) n
cross join lateral (
    select coalesce(array_agg(r.name order by r.name), '{}') as names,
        coalesce(array_agg(r.query order by r.name), '{}') as queries
    from pcfarm.related_read r where r.job_type = t.name) r
where $1::text is null or t.name = $1
order by t.name
limit 10000
