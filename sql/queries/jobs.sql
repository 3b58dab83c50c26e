-- Jobs by id, newest first, with what words about their state need: how many workstations could run them, how many of
-- those are free, how many hold their problems, and why none could ever. Counts come from job_progress, which sums what
-- transactions kept.
with of_page as materialized (
    select j.job_id, pcfarm.announced(t.controller) as controller,
        case when t.requirement is null and t.labels = '{}' and j.requirement is null then '[]'
            else pcfarm.merged(t.requirement, t.labels, j.requirement) end as requirement
    from pcfarm.job j
    join pcfarm.job_type t on t.name = j.job_type
    where j.job_id = any ($1)),
able as (
    select k.controller, k.requirement, count(*) as connected, count(*) filter (where w.state = 'waiting') as working,
        count(*) filter (where w.state = 'waiting' and not exists (
            select from pcfarm.checkout h where h.workstation_id = w.workstation_id and h.ended_at is null)) as idle
    from (select distinct o.controller, o.requirement from of_page o) k
    join pcfarm.workstation_facts w on w.state not in ('offline', 'dead') and k.controller = any (w.controllers)
        and (k.requirement = '[]' or pcfarm.meets(k.requirement, w))
    -- A workstation whose connection is lost is not connected, though its lease runs.
    join pcfarm.workstation c on c.workstation_id = w.workstation_id and not c.disconnected
    group by k.controller, k.requirement),
nowhere as materialized (
    select w.job_id, array_agg(case when w.job_type <> j.job_type then format('of job type %s, ', w.job_type) else '' end || r.reason) as reasons
    from pcfarm.without_workstation($1) w
    join pcfarm.job j on j.job_id = w.job_id
    cross join lateral pcfarm.why_nowhere(w.controller, w.requirement) as r(reason)
    group by w.job_id)
select p.job_id, p.name, p.title, p.job_type, p.owner, p.state, p.priority, p.deadline, p.created_at, p.opened_at,
    p.ended_at, p.problems, p.done, p.failed, p.in_progress, p.waiting, p.cancelled, p.requeued, j.standing, t.controller,
    case when j.not_before > clock_timestamp()
        then to_char(j.not_before at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"') end as starts_at,
    coalesce(j.deadline < clock_timestamp(), false) as late, h.workstations,
    case when j.state in ('open', 'held') and p.waiting > 0 then array(select pcfarm.job_obstacles(p.job_id)) else '{}' end as obstacles,
    coalesce(a.connected, 0) as connected, coalesce(a.working, 0) as working, coalesce(a.idle, 0) as idle,
    pcfarm.conditions(j.requirement) as require, pcfarm.conditions(o.requirement) as needs, coalesce(n.reasons, '{}') as nowhere
from pcfarm.job_progress p
join pcfarm.job j on j.job_id = p.job_id
join pcfarm.job_type t on t.name = j.job_type
join of_page o on o.job_id = p.job_id
left join able a on a.controller = o.controller and a.requirement = o.requirement
left join nowhere n on n.job_id = p.job_id
cross join lateral (
    select count(distinct c.workstation_id) as workstations from pcfarm.checkout c
    where c.job_id = p.job_id and c.ended_at is null) h
where p.job_id = any ($1) and j.job_id = any ($1)
order by p.job_id desc
