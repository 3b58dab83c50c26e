-- $1: keys of the checkout's problems. A row for each season or event that a flight falls in.
select f.flight_id::text as key, s.name, s.demand_factor
from airline.flight f
join airline.season s on f.flight_date between s.first_day and s.last_day
                     and (s.destination is null or s.destination = f.destination)
where f.flight_id = any($1::text[]::bigint[])
