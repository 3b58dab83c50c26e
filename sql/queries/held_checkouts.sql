-- What these workstations hold.
select i.workstation_id, i.checkout_id, i.job_id, i.job_name, i.from_order, i.to_order, i.problems::bigint as problems,
    i.since
from pcfarm.in_progress i
where i.workstation_id = any ($1)
order by i.workstation_id, i.checkout_id
limit 20000
