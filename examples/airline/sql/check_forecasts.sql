-- $1: a run. What is wrong with it, one row per flight and fault; none when all is well. A flight without a plan
-- is a fault too.
select f.flight_id, case
           when p.flight_id is null then 'no plan'
           when cardinality(p.demand) <> 110 or cardinality(p.deviation) <> 110 then 'not 110 forecasts'
           when 0 > any(p.demand) or 0 > any(p.deviation) then 'negative forecast'
           when p.expected_revenue < 0 or p.standard_error < 0 then 'negative revenue'
           when p.authorised < p.seats then 'fewer authorised than seats'
           else 'limits do not fit the legs'
       end as fault
from airline.flight f
left join airline.flight_forecast p on p.run = $1::text and p.flight_id = f.flight_id
where p.flight_id is null
   or cardinality(p.demand) <> 110 or cardinality(p.deviation) <> 110
   or 0 > any(p.demand) or 0 > any(p.deviation)
   or p.expected_revenue < 0 or p.standard_error < 0 or p.authorised < p.seats
   or cardinality(p.protection) <> 9 * cardinality(f.leg_miles)
   or cardinality(p.booking_limit) <> 5 * cardinality(f.leg_miles) * (cardinality(f.leg_miles) + 1)
order by f.flight_id
