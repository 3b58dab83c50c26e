-- $1: keys of the checkout's problems. By primary key.
select f.flight_id::text as key, f.distance_miles as miles, f.leg_miles, f.segment_share
from airline.flight f
where f.flight_id = any($1::text[]::bigint[])
