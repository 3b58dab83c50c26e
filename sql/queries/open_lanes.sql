-- Lanes of open jobs that have something to hand out, with their pointers, in the dispatcher's order. Reads
-- open jobs only, by the partial index on jobs that have not ended, and of each lane its newest checkout. Of very many, those
-- that each user has of each job type first: nobody's lanes keep another's out of sight.
select s.* from (
    select j.job_id, j.owner::text, j.name, j.priority, j.deadline, j.deadline < clock_timestamp() as late,
        j.parameters, l.lane_id, l.job_type, nullif(j.job_type, l.job_type) as of_type, l.priority as urgency,
        l.kind = 'retry' as came_back, t.retry_first, coalesce(p.to_order, 0) as next_extraction,
        case l.kind when 'retry' then coalesce(r.batch_order + 1, 0) else l.next_insertion end as next_insertion,
        l.problems, j.trace_parent,
        -- To put together what most have one of, or none, would cost more than all the rest.
        case when t.labels = '{}' and j.requirement is null then t.requirement
            when t.labels = '{}' and t.requirement is null then j.requirement
            else pcfarm.merged(t.requirement, t.labels, j.requirement) end as requirement,
        exists (select from pcfarm.job_info i where i.job_id = j.job_id) as has_info,
        exists (select from pcfarm.job_file f where f.job_id = j.job_id) as has_files,
        j.problem_files,
        row_number() over (partition by j.owner, l.job_type
            order by j.priority desc, j.deadline asc nulls last, j.job_id, l.priority desc, l.lane_id) as place
    from pcfarm.job j
    join pcfarm.lane l on l.job_id = j.job_id and not l.exhausted and not l.parked
    join pcfarm.job_type t on t.name = l.job_type and t.suspended_since is null
    join pcfarm.job_type o on o.name = j.job_type and o.suspended_since is null
    left join lateral (
        select c.to_order from pcfarm.checkout c
        where c.job_id = l.job_id and c.lane_id = l.lane_id order by c.from_order desc limit 1) p on true
    left join lateral (
        select r.batch_order from pcfarm.requeued r
        where r.job_id = l.job_id and r.lane_id = l.lane_id order by r.batch_order desc limit 1) r on l.kind = 'retry'
    where not exists (select from pcfarm.farm f where f.suspended_since is not null)
        and j.ended_at is null and j.state = 'open' and coalesce(j.not_before, '-infinity') <= clock_timestamp()
        and not exists (
            select from pcfarm.job_after a
            join pcfarm.job b on b.job_id = a.after_job and b.state <> 'done' and not (a.ended and b.ended_at is not null)
            where a.job_id = j.job_id)
        and coalesce(p.to_order, 0) < case l.kind when 'retry' then coalesce(r.batch_order + 1, 0) else l.next_insertion end
    order by place
    limit 10000) s
order by s.priority desc, s.deadline asc nulls last, s.job_id, s.urgency desc, s.lane_id
