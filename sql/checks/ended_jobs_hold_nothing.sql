-- Nobody has problems of an ended job in hand.
select c.job_id, c.checkout_id
from pcfarm.checkout c
join pcfarm.job j on j.job_id = c.job_id
where c.ended_at is null and j.ended_at is not null
