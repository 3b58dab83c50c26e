-- Jobs by id, newest first, with what words about their state need: how many workstations could run them, how many of
-- those are free, how many hold their problems. Counts come from job_progress, which sums what transactions kept.
with able as (
    select c.controller, count(*) as connected, count(*) filter (where w.state = 'waiting') as working,
        count(*) filter (where w.state = 'waiting' and not exists (
            select from pcfarm.checkout h where h.workstation_id = w.workstation_id and h.ended_at is null)) as idle
    from pcfarm.workstation w
    cross join lateral unnest(w.controllers) as c(controller)
    where w.state <> 'dead'
    group by c.controller)
select p.job_id, p.name, p.title, p.job_type, p.owner, p.state, p.priority, p.deadline, p.created_at, p.opened_at,
    p.ended_at, p.problems, p.done, p.failed, p.in_progress, p.waiting, p.cancelled, p.requeued, j.standing, t.controller,
    case when j.not_before > clock_timestamp()
        then to_char(j.not_before at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"') end as starts_at,
    coalesce(j.deadline < clock_timestamp(), false) as late, h.workstations,
    case when j.state in ('open', 'held') and p.waiting > 0 then array(select pcfarm.job_obstacles(p.job_id)) else '{}' end as obstacles,
    coalesce(a.connected, 0) as connected, coalesce(a.working, 0) as working, coalesce(a.idle, 0) as idle
from pcfarm.job_progress p
join pcfarm.job j on j.job_id = p.job_id
join pcfarm.job_type t on t.name = j.job_type
left join able a on a.controller = pcfarm.announced(t.controller)
cross join lateral (
    select count(distinct c.workstation_id) as workstations from pcfarm.checkout c
    where c.job_id = p.job_id and c.ended_at is null) h
where p.job_id = any ($1) and j.job_id = any ($1)
order by p.job_id desc
