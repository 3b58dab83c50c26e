-- Live checkouts of these workstations, as the database has them, with the number of problems that have neither a result nor a
-- failed attempt. By workstation and nothing else: on a farm that was analysed while empty every index of live checkouts seems
-- equally cheap.
select c.workstation_id, c.checkout_id, c.token, c.job_type, greatest(0, c.problems - c.delivered - (
    select count(*) from pcfarm.failed_attempt f where f.job_id = c.job_id and f.checkout_id = c.checkout_id)) as problems_left
from unnest($1::bigint[]) as asked (workstation_id)
cross join lateral (
    select c.workstation_id, c.checkout_id, c.token, c.job_id, c.job_type, c.problems, c.delivered from pcfarm.checkout c
    where c.workstation_id = asked.workstation_id and c.ended_at is null offset 0) c
order by c.workstation_id, c.checkout_id
