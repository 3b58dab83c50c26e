-- What servers have measured of their workstations ($1): of which job type ($2), problems a second ($3).
insert into pcfarm.workstation_speed as s (workstation_id, job_type, problems_per_second)
select m.workstation_id, m.job_type, m.problems_per_second
from unnest($1::bigint[], $2::text[], $3::float8[]) as m(workstation_id, job_type, problems_per_second)
join pcfarm.workstation w on w.workstation_id = m.workstation_id
order by m.workstation_id
on conflict (workstation_id) do update set
    job_type = excluded.job_type, problems_per_second = excluded.problems_per_second, measured_at = excluded.measured_at
