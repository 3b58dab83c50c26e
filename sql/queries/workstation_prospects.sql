-- Why a workstation has or has no work: of jobs that have not ended, how many it could run, how many of those may be
-- handed out now, and how many of these have something left.
with able as materialized (
    select t.name from pcfarm.job_type t
    join pcfarm.workstation w on w.workstation_id = $1 and pcfarm.announced(t.controller) = any (w.controllers)),
could as (
    select j.job_id, j.state = 'open' and coalesce(j.not_before, '-infinity') <= clock_timestamp() as may,
        j.state, exists (
            select from pcfarm.queue_pointer q
            where q.job_id = j.job_id and q.job_type in (select a.name from able a) and q.next_extraction < q.next_insertion
        ) as has_work
    from pcfarm.job j
    where j.ended_at is null and (j.job_type in (select a.name from able a) or exists (
        select from pcfarm.lane l where l.job_id = j.job_id and l.job_type in (select a.name from able a))))
select w.silent_since is not null as silent, w.drain,
    (select count(*) from could) as could_run,
    (select count(*) from could where may) as may_run,
    (select count(*) from could where may and has_work) as have_work,
    (select count(*) from could where state = 'loading') as loading,
    (select count(*) from could where state = 'held') as held,
    (select array_agg(distinct t.controller::text order by t.controller::text) from pcfarm.job j
        join pcfarm.job_type t on t.name = j.job_type
        where j.ended_at is null and j.state = 'open' and not pcfarm.announced(t.controller) = any (w.controllers)) as wanted_elsewhere
from pcfarm.workstation w
where w.workstation_id = $1
