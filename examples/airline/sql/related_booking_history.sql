-- $1: keys of the checkout's problems. The comparable past departures of each flight's market, as hexadecimal
-- text: one value to copy instead of 786 numbers to print and parse.
select f.flight_id::text as key, encode(h.bookings, 'hex') as bookings
from airline.flight f
join airline.booking_history h using (market_id)
where f.flight_id = any($1::text[]::bigint[])
