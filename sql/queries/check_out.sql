-- Hands out consecutive convoys of lanes as checkouts: one statement, so nobody ever waits for a server that thinks or is
-- frozen. A job's row is shared with other hand-outs and loads and excludes cancel and hold; whoever has it locked holds up
-- this job and no other. A lane's first checkout must start where its newest one ends; of two servers that start at the same
-- place the unique key lets one through. A lane without a row, or a unique violation, means: look at the lane again.
--
-- What a crash forgets of it is handed out again: it commits without waiting for the disk.
with farm as materialized (
    select f.suspended_since, f.concurrency, set_config('synchronous_commit', 'off', true) as commits from pcfarm.farm f),
hand_out as materialized (
    select h.* from unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[], $7::bigint[],
        $8::bigint[], $9::float8[]) with ordinality
        as h(job_id, lane_id, job_type, from_order, to_order, problems, workstation_id, token, seconds, n)
    where exists (select from farm f where f.suspended_since is null and f.commits = 'off')),
job as materialized (
    select j.job_id, j.owner, j.job_type, j.requirement from pcfarm.job j
    where j.job_id = any ($1) and j.state = 'open' order by j.job_id for share skip locked),
-- Once for each job: in a join it would be asked for each pair.
unlimited as materialized (
    select j.job_id, j.owner, j.job_type, j.requirement from job j
    -- A limit that the server has not seen yet: it looks again, and comes with check_out_within_limits.
    where not exists (
        select from farm f left join pcfarm.farm_user u on u.name = j.owner
        where coalesce(u.concurrency, f.concurrency) is not null)),
type as materialized (
    select t.name, t.suspended_since is not null as is_suspended, t.requirement is not null or t.labels <> '{}' as is_demanding
    from pcfarm.job_type t where t.name = any ($3 || array(select j.job_type from job j))),
lane as materialized (
    select distinct on (h.job_id, h.lane_id) h.job_id, h.lane_id, h.job_type, h.from_order from hand_out h
    order by h.job_id, h.lane_id, h.n),
at_its_pointer as materialized (
    select l.job_id, l.lane_id, j.owner, nullif(j.job_type, l.job_type) as of_type from lane l
    join unlimited j on j.job_id = l.job_id
    where l.from_order = coalesce((
        select c.to_order from pcfarm.checkout c
        where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1), 0)
        -- As pcfarm.may_be_handed_out has it. Here and below no function is called: to plan its text anew with each call
        -- would cost more than all the rest.
        and exists (select from pcfarm.lane x where x.job_id = l.job_id and x.lane_id = l.lane_id and not x.parked)
        and not exists (select from type t where t.name in (l.job_type, j.job_type) and t.is_suspended)
        and not exists (
            select from pcfarm.job_after a
            join pcfarm.job b on b.job_id = a.after_job and b.state <> 'done' and not (a.ended and b.ended_at is not null)
            where a.job_id = l.job_id)
        -- What is required, or what a workstation has, may have been changed since its server has matched the two.
        and (j.requirement is null and not exists (select from type t where t.name = l.job_type and t.is_demanding)
            or pcfarm.all_meet(l.job_id, l.job_type, array(
                select h.workstation_id from hand_out h where h.job_id = l.job_id and h.lane_id = l.lane_id)))
        -- Other such limits.
        and not exists (
            select from pcfarm.user_job_type u
            where u.user_name = j.owner and u.job_type in (l.job_type, j.job_type) and u.concurrency is not null)
        and not exists (select from pcfarm.job_type_resource n where n.job_type in (l.job_type, j.job_type))
        and (not exists (select from pcfarm.profile p where p.job_type in (l.job_type, j.job_type)) or not exists (
            select from unnest(array[l.job_type, j.job_type]) t(name) cross join lateral pcfarm.profile_at(t.name) p
            where p.problems_per_hour is not null or p.problems_per_checkout is not null)))
insert into pcfarm.checkout
    (job_id, lane_id, job_type, of_type, owner, from_order, to_order, problems, workstation_id, token, deadline)
select h.job_id, h.lane_id, h.job_type, l.of_type, l.owner, h.from_order, h.to_order, h.problems, h.workstation_id, h.token,
    clock_timestamp() + h.seconds * interval '1 second'
from hand_out h
join at_its_pointer l on l.job_id = h.job_id and l.lane_id = h.lane_id
order by h.n
returning checkout_id, job_id, lane_id, from_order
