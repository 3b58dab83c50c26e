-- Users by name, with their limits by job type as arrays.
select u.name::text, u.queue_limit, u.concurrency, u.allocation::bigint, u.prohibited, u.waiting, u.in_progress, u.open_jobs,
    coalesce(t.names, '{}') as job_types, coalesce(t.queue_limits, '{}') as queue_limits,
    coalesce(t.concurrencies, '{}') as concurrencies, coalesce(t.allocations, '{}') as allocations,
    pcfarm.version_of('user', u.name::text) as version
from pcfarm.user_status u
left join lateral (
    select array_agg(t.job_type order by t.job_type) as names, array_agg(t.queue_limit order by t.job_type) as queue_limits,
        array_agg(t.concurrency order by t.job_type) as concurrencies,
        array_agg(t.allocation::bigint order by t.job_type) as allocations
    from pcfarm.user_job_type t where t.user_name = u.name) t on true
order by u.name
limit 10000
