-- Lanes of open jobs that are not handed out to their end, as far as that is written down, with their pointers: of as many as
-- are asked for, those that each user has first of each job type and requirement, so that nobody's lanes keep another's out of
-- sight. Reads open jobs only, by the partial index on jobs that have not ended, and of each lane that it brings its newest
-- checkout. In the dispatcher's order; rank is the one in which they are chosen.
with coming as materialized (
    select j.job_id, j.owner, j.name, j.priority, j.deadline, j.parameters, j.requirement, j.trace_parent, j.problem_files,
        j.job_type as of_type, l.lane_id, l.job_type, l.priority as urgency, l.kind, l.next_insertion, l.problems,
        row_number() over (partition by j.owner, l.job_type, j.job_type, j.requirement
            order by j.priority desc, j.deadline asc nulls last, j.job_id, l.priority desc, l.lane_id) as place
    from pcfarm.job j
    join pcfarm.lane l on l.job_id = j.job_id and not l.exhausted and not l.parked
    join pcfarm.job_type t on t.name = l.job_type and t.suspended_since is null
    join pcfarm.job_type o on o.name = j.job_type and o.suspended_since is null
    where not exists (select from pcfarm.farm f where f.suspended_since is not null)
        and j.ended_at is null and j.state = 'open' and coalesce(j.not_before, '-infinity') <= clock_timestamp()
        and not exists (
            select from pcfarm.job_after a
            join pcfarm.job b on b.job_id = a.after_job and b.state <> 'done' and not (a.ended and b.ended_at is not null)
            where a.job_id = j.job_id)
    order by place, j.priority desc, j.deadline asc nulls last, j.job_id, l.priority desc, l.lane_id
    limit $1)
select c.job_id, c.owner::text, c.name, c.priority, c.deadline, c.deadline < clock_timestamp() as late, c.parameters,
    c.lane_id, c.job_type, nullif(c.of_type, c.job_type) as of_type, c.urgency, c.kind = 'retry' as came_back,
    t.retry_first, coalesce(p.to_order, 0) as next_extraction,
    case c.kind when 'retry' then coalesce(r.batch_order + 1, 0) else c.next_insertion end as next_insertion,
    c.problems, c.trace_parent,
    -- To put together what most have one of, or none, would cost more than all the rest.
    case when t.labels = '{}' and c.requirement is null then t.requirement
        when t.labels = '{}' and t.requirement is null then c.requirement
        else pcfarm.merged(t.requirement, t.labels, c.requirement) end as requirement,
    exists (select from pcfarm.job_info i where i.job_id = c.job_id) as has_info,
    exists (select from pcfarm.job_file f where f.job_id = c.job_id) as has_files,
    c.problem_files,
    row_number() over (order by c.place, c.priority desc, c.deadline asc nulls last, c.job_id, c.urgency desc, c.lane_id) as rank
from coming c
join pcfarm.job_type t on t.name = c.job_type
left join lateral (
    select h.to_order from pcfarm.checkout h
    where h.job_id = c.job_id and h.lane_id = c.lane_id order by h.from_order desc limit 1) p on true
left join lateral (
    select r.batch_order from pcfarm.requeued r
    where r.job_id = c.job_id and r.lane_id = c.lane_id order by r.batch_order desc limit 1) r on c.kind = 'retry'
order by c.priority desc, c.deadline asc nulls last, c.job_id, c.urgency desc, c.lane_id
