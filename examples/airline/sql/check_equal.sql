-- $1, $2: two runs. The flights whose plans are not the same in both, to the last bit; none when they agree.
select coalesce(a.flight_id, b.flight_id) as flight_id
from (select * from airline.flight_forecast where run = $1::text) a
full join (select * from airline.flight_forecast where run = $2::text) b using (flight_id)
where (a.variant, a.seats, a.authorised, a.expected_revenue, a.standard_error, a.demand, a.deviation,
       a.no_show_percent, a.protection, a.booking_limit)
      is distinct from
      (b.variant, b.seats, b.authorised, b.expected_revenue, b.standard_error, b.demand, b.deviation,
       b.no_show_percent, b.protection, b.booking_limit)
order by 1
