-- Hands out consecutive convoys of one lane as checkouts: one statement, so nobody ever waits for a server that
-- thinks or is frozen. The job's row is shared with other hand-outs and loads and excludes cancel and hold; whoever has
-- it locked holds up this job and no other. The first checkout must start where the lane's newest one ends; of two
-- servers that start at the same place the unique key lets one through. No row, or a unique violation, means: look at the
-- lane again.
with job as materialized (
    select j.job_id from pcfarm.job j where j.job_id = $1 and j.state = 'open' for share skip locked)
insert into pcfarm.checkout (job_id, lane_id, job_type, from_order, to_order, problems, workstation_id, token, deadline)
select j.job_id, $2, $3, h.from_order, h.to_order, h.problems, h.workstation_id, h.token,
    clock_timestamp() + h.seconds * interval '1 second'
from job j
cross join unnest($4::bigint[], $5::bigint[], $6::integer[], $7::bigint[], $8::bigint[], $9::float8[])
    with ordinality as h(from_order, to_order, problems, workstation_id, token, seconds, n)
where ($4::bigint[])[1] = coalesce((
    select c.to_order from pcfarm.checkout c
    where c.job_id = $1 and c.lane_id = $2 order by c.from_order desc limit 1), 0)
order by h.n
returning checkout_id, from_order
