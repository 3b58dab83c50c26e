-- Why a workstation has or has no work: of jobs that have not ended, how many it could run, how many of those may be
-- handed out now, and how many of these have something left; and what it lacks for others.
with facts as materialized (select f.* from pcfarm.workstation_facts f where f.workstation_id = $1),
need as materialized (
    select j.job_id, j.state, t.name as job_type,
        case when t.requirement is null and t.labels = '{}' and j.requirement is null then '[]'
            else pcfarm.merged(t.requirement, t.labels, j.requirement) end as requirement
    from pcfarm.job j
    cross join lateral (select l.job_type from pcfarm.lane l where l.job_id = j.job_id union select j.job_type) n
    join pcfarm.job_type t on t.name = n.job_type
    join facts f on pcfarm.announced(t.controller) = any (f.controllers)
    where j.ended_at is null),
able as materialized (
    select n.job_id, n.job_type from need n cross join facts f where n.requirement = '[]' or pcfarm.meets(n.requirement, f.*)),
could as (
    select j.job_id, j.state = 'open' and coalesce(j.not_before, '-infinity') <= clock_timestamp() as may,
        j.state, exists (
            select from pcfarm.queue_pointer q
            join able a on a.job_id = q.job_id and a.job_type = q.job_type
            where q.job_id = j.job_id and q.next_extraction < q.next_insertion
        ) as has_work
    from pcfarm.job j
    where j.ended_at is null and j.job_id in (select a.job_id from able a))
select w.silent_since is not null as silent, w.drain, w.presence_notes,
    (select count(*) from could) as could_run,
    (select count(*) from could where may) as may_run,
    (select count(*) from could where may and has_work) as have_work,
    (select count(*) from could where state = 'loading') as loading,
    (select count(*) from could where state = 'held') as held,
    (select array_agg(distinct t.controller::text order by t.controller::text) from pcfarm.job j
        join pcfarm.job_type t on t.name = j.job_type
        where j.ended_at is null and j.state = 'open' and not pcfarm.announced(t.controller) = any (w.controllers)) as wanted_elsewhere,
    (select array_agg(distinct pcfarm.condition_text(c) order by pcfarm.condition_text(c)) from need n
        cross join facts f
        cross join lateral jsonb_array_elements(n.requirement) c
        where n.state = 'open' and not pcfarm.holds(c, f.*)) as lacks
from pcfarm.workstation w
where w.workstation_id = $1
