-- Returns those of these checkouts ($2) whose problems one of these idle workstations ($1) could take, and whether their convoys
-- must stay whole. Called only while some workstation is idle and another one holds more than it computes; both lists are
-- short. Shares and sizes are not compared: a problem that no idle workstation takes goes back to its holder.
with idle as materialized (
    select f as facts, f.workstation_id, f.controllers, coalesce(z.selection, '{}') as selection
    from pcfarm.workstation_facts f
    left join pcfarm.selection z on z.hostname = f.hostname
    where f.workstation_id = any ($1)),
held as materialized (
    select c.checkout_id, c.job_id, c.lane_id, c.from_order, c.to_order, c.job_type, c.owner, c.workstation_id
    from unnest($2::bigint[]) h(checkout_id)
    cross join lateral (
        select c.* from pcfarm.checkout c where c.checkout_id = h.checkout_id and c.ended_at is null offset 0) c)
select h.checkout_id,
    exists (select from pcfarm.lane l where l.job_id = h.job_id and l.lane_id = h.lane_id and l.grouped)
    or exists (
        select from pcfarm.requeued r
        where r.job_id = h.job_id and r.lane_id = h.lane_id and r.batch_order >= h.from_order and r.batch_order < h.to_order
            and r.grouped) as whole_convoys
from held h
join pcfarm.job j on j.job_id = h.job_id and j.state = 'open'
join pcfarm.job_type t on t.name = h.job_type and t.suspended_since is null
where not exists (select from pcfarm.farm f where f.suspended_since is not null)
    and exists (
        select from idle i
        where i.workstation_id <> h.workstation_id
            and pcfarm.announced(t.controller) = any (i.controllers)
            and (not i.selection ? 'job_types' or i.selection -> 'job_types' ? h.job_type)
            and (not i.selection ? 'required' or i.selection -> 'required' ? h.owner::text)
            and not (i.selection ? 'excluded' and i.selection -> 'excluded' ? h.owner::text)
            and (t.requirement is null and t.labels = '{}' and j.requirement is null
                or pcfarm.meets(pcfarm.merged(t.requirement, t.labels, j.requirement), i.facts)))
order by h.checkout_id
