-- Returns those of these checkouts ($2) whose problems one of these idle workstations ($1) could take, and whether their convoys
-- must stay whole. Called only while some workstation is idle and another one holds more than it computes; both lists are
-- short. Shares and sizes are not compared: a problem that no idle workstation takes goes back to its holder.
--
-- Limits count problems in progress, and returned problems are not in progress: a limit that leaves room for a problem once the checkout is
-- returned keeps no problem from another workstation. Limits by the hour count each hand-out.
with idle as materialized (
    select f as facts, f.workstation_id, f.controllers, coalesce(z.selection, '{}') as selection
    from pcfarm.workstation_facts f
    left join pcfarm.selection z on z.hostname = f.hostname
    where f.workstation_id = any ($1)),
held as materialized (
    select c.checkout_id, c.job_id, c.lane_id, c.from_order, c.to_order, c.job_type, c.of_type, c.owner, c.workstation_id,
        c.problems - c.delivered as unsolved
    from unnest($2::bigint[]) h(checkout_id)
    cross join lateral (
        select c.* from pcfarm.checkout c where c.checkout_id = h.checkout_id and c.ended_at is null offset 0) c),
-- Limits of users and of their problems of a job type, and resources by job type: problems beyond them, as long as nothing is
-- returned. Negative: there is room.
beyond as materialized (
    select o.owner, null::text as job_type, pcfarm.in_progress_of(o.owner) - coalesce(u.concurrency, f.concurrency) as problems
    from (select distinct h.owner from held h) o
    cross join pcfarm.farm f
    left join pcfarm.farm_user u on u.name = o.owner
    where coalesce(u.concurrency, f.concurrency) is not null
    union all
    select t.user_name, t.job_type, pcfarm.in_progress_of(t.user_name, t.job_type) - t.concurrency
    from pcfarm.user_job_type t
    where t.concurrency is not null and t.user_name = any (array(select h.owner from held h))
        and t.job_type = any (array(select unnest(array[h.job_type, h.of_type]) from held h))
    union all
    select null, n.job_type, ceil((pcfarm.tokens_in_use(r.name) - r.tokens)::numeric / n.tokens)::bigint
    from pcfarm.job_type_resource n
    join pcfarm.resource r on r.name = n.resource
    where n.job_type = any (array(select unnest(array[h.job_type, h.of_type]) from held h))),
-- Job types of whose problems no more may be handed out in this hour.
spent as materialized (
    select distinct p.job_type
    from (select distinct unnest(array[h.job_type, h.of_type]) as job_type from held h) t
    cross join lateral pcfarm.profile_at(t.job_type) p
    where p.problems_per_hour is not null and pcfarm.handed_out_in_an_hour(p.profile_id) >= p.problems_per_hour)
select h.checkout_id,
    exists (select from pcfarm.lane l where l.job_id = h.job_id and l.lane_id = h.lane_id and l.grouped) or s.grouped as whole_convoys
from held h
join pcfarm.job j on j.job_id = h.job_id and j.state = 'open' and coalesce(j.not_before, '-infinity') <= clock_timestamp()
join pcfarm.job_type t on t.name = h.job_type and t.suspended_since is null
join pcfarm.job_type o on o.name = j.job_type and o.suspended_since is null
join pcfarm.lane l on l.job_id = h.job_id and l.lane_id = h.lane_id
left join pcfarm.farm_user u on u.name = h.owner
cross join lateral (
    select coalesce(bool_or(r.grouped), false) as grouped, coalesce(bool_or(r.alone), false) as alone
    from pcfarm.requeued r
    where r.job_id = h.job_id and r.lane_id = h.lane_id and r.batch_order >= h.from_order and r.batch_order < h.to_order offset 0) s
where not exists (select from pcfarm.farm f where f.suspended_since is not null)
    -- Problems that run alone are never returned.
    and not s.alone
    and not exists (select from pcfarm.waits_for(h.job_id))
    and not exists (
        select from pcfarm.lane r
        where r.job_id = l.job_id and r.job_type = l.job_type and r.priority = l.priority and r.kind = 'retry' and r.parked)
    and not exists (
        select from beyond b
        where (b.owner is null or b.owner = h.owner) and (b.job_type is null or b.job_type in (h.job_type, h.of_type))
            and b.problems >= h.unsolved)
    and not exists (select from spent p where p.job_type in (h.job_type, h.of_type))
    and exists (
        select from idle i
        where i.workstation_id <> h.workstation_id
            and pcfarm.announced(t.controller) = any (i.controllers)
            and (not i.selection ? 'job_types' or i.selection -> 'job_types' ? h.job_type)
            and (case when i.selection ? 'required' then i.selection -> 'required' ? h.owner::text
                else not coalesce(u.prohibited, false) end)
            and not (i.selection ? 'excluded' and i.selection -> 'excluded' ? h.owner::text)
            and (t.requirement is null and t.labels = '{}' and j.requirement is null
                or pcfarm.meets(pcfarm.merged(t.requirement, t.labels, j.requirement), i.facts)))
order by h.checkout_id
