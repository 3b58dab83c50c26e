-- $1: keys of the checkout's problems. The comparable past departures of each flight's market, as hexadecimal
-- text: one value to copy instead of 786 numbers to print and parse. A subquery and not a join: for a few hundred
-- keys the planner would hash the whole history, which costs five times what the index does.
select f.flight_id::text as key,
       (select encode(h.bookings, 'hex') from airline.booking_history h where h.market_id = f.market_id) as bookings
from airline.flight f
where f.flight_id = any($1::text[]::bigint[])
