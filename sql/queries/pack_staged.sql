-- As pcfarm.load packs: whole groups, each at the place of its first row; a row without a group is one by itself.
with groups as (
    select coalesce('g' || s.group_key, 'r' || s.number) as member_of, min(s.number) as first, count(*) as members
    from pg_temp.pcfarm_submitted s
    group by 1),
packed as (
    select g.member_of, g.first, pcfarm.pack(g.members, $3) over (order by g.first) as batch_order from groups g)
insert into pcfarm.problem (job_id, lane_id, problem_id, batch_order, key, payload)
select $1, $2, $2 * 10000000000 + row_number() over (order by p.first, s.number), p.batch_order, s.key, s.payload
from pg_temp.pcfarm_submitted s
join packed p on p.member_of = coalesce('g' || s.group_key, 'r' || s.number)
order by p.first, s.number
