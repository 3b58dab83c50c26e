-- In how many seconds a load is to be tried.
select extract(epoch from min(l.next_attempt_at) - clock_timestamp())::float8
from pcfarm.schedule_load l where l.loaded_at is null and l.next_attempt_at is not null
