select r.name, r.tokens, r.in_use, r.description, coalesce(n.names, '{}') as job_types, coalesce(n.tokens, '{}') as needs,
    pcfarm.version_of('resource', r.name) as version
from pcfarm.resource_status r
left join lateral (
    select array_agg(n.job_type order by n.job_type) as names, array_agg(n.tokens order by n.job_type) as tokens
    from pcfarm.job_type_resource n where n.resource = r.name) n on true
order by r.name
limit 10000
