-- A failed attempt waits for its checkout to close, and no longer.
select f.job_id, f.checkout_id, f.problem_id, c.ending
from pcfarm.failed_attempt f
left join pcfarm.checkout c on c.checkout_id = f.checkout_id
where c.checkout_id is null or c.ended_at is not null
