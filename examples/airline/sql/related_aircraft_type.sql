-- $1: keys of the checkout's problems. The seats of each, and where the number comes from.
select f.flight_id::text as key, a.seats, a.imputed_by
from airline.flight f
join airline.aircraft_type a using (aircraft_type_id)
where f.flight_id = any($1::text[]::bigint[])
