-- What pcfarm.job_problems says, of problems whose places are known: at most so many bytes, and never less than one.
-- The view itself would look for them by problem id, for which there is no index.
select s.problem_id, s.key, s.job_type, s.state, s.attempts, s.message, s.checkout_id, s.workstation_id, s.payload, s.result
from (
    select a.n, a.problem_id, a.key, coalesce(l.job_type, j.job_type) as job_type,
        case when r.failed then 'failed' when r.problem_id is not null then 'done'
             when j.state = 'cancelled' then 'cancelled'
             when c.checkout_id is not null then 'in_progress'
             else 'waiting' end as state,
        coalesce(r.attempts, d.attempts, q.attempts, 0) as attempts,
        coalesce(r.message, d.message, q.message, 'not before ' || d.due_at) as message,
        coalesce(r.checkout_id, c.checkout_id) as checkout_id,
        coalesce(rc.workstation_id, c.workstation_id) as workstation_id, a.payload, r.solution as result,
        sum(pg_column_size(a.payload) + coalesce(pg_column_size(r.solution), 0))
            over (order by a.n rows between unbounded preceding and 1 preceding) as bytes_before
    from pcfarm.job j
    cross join lateral (
        select i.n, p.problem_id, p.lane_id, p.batch_order, p.key, p.payload
        from unnest($2::bigint[], $3::bigint[], $4::bigint[]) with ordinality as i(problem_id, lane_id, batch_order, n)
        cross join lateral (
            select p.problem_id, p.lane_id, p.batch_order, p.key, p.payload from pcfarm.problem p
            where p.job_id = $1 and p.lane_id = i.lane_id and p.batch_order = i.batch_order
                and p.problem_id = i.problem_id
            union all
            -- Copied, and its batch order not assigned yet.
            select p.problem_id, p.lane_id, p.batch_order, p.key, p.payload from pcfarm.problem p
            where i.batch_order is null and p.job_id = $1 and p.lane_id = i.lane_id and p.batch_order is null
                and p.problem_id = i.problem_id) p) a
    left join pcfarm.lane l on l.job_id = $1 and l.lane_id = a.lane_id
    left join lateral (
        select r.problem_id, r.failed, r.attempts, r.message, r.checkout_id, r.solution from pcfarm.result r
        where r.job_id = $1 and r.problem_id = a.problem_id limit 1) r on true
    left join pcfarm.checkout rc on rc.checkout_id = r.checkout_id
    left join lateral (
        select q.lane_id, q.batch_order, q.attempts, q.message from pcfarm.requeued q
        where q.job_id = $1 and q.problem_id = a.problem_id
        order by q.batch_order desc limit 1) q on true
    left join lateral (
        select d.attempts, d.message, d.due_at from pcfarm.delayed d
        where d.job_id = $1 and d.problem_id = a.problem_id limit 1) d on true
    left join lateral (
        select c.checkout_id, c.workstation_id from pcfarm.checkout c
        where r.problem_id is null and c.ended_at is null and c.job_id = $1
            and c.lane_id = coalesce(q.lane_id, a.lane_id)
            and c.from_order <= coalesce(q.batch_order, a.batch_order)
            and c.to_order > coalesce(q.batch_order, a.batch_order)
        limit 1) c on true
    where j.job_id = $1) s
where coalesce(s.bytes_before, 0) < $5
order by s.n
