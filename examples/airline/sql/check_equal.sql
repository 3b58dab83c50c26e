-- $1, $2: two runs. The flights whose plans are not the same in both, to the last bit; none when they agree.
with plan as (
    select p.run, p.flight_id,
           row(p.variant, p.seats, p.seats_imputed_by, p.authorised, p.expected_revenue, p.standard_error, p.demand,
               p.deviation, p.no_show_percent, p.protection, p.booking_limit) as content
    from airline.flight_forecast p
    where p.run in ($1::text, $2::text)
)
select coalesce(a.flight_id, b.flight_id) as flight_id
from (select plan.flight_id, plan.content from plan where plan.run = $1::text) a
full join (select plan.flight_id, plan.content from plan where plan.run = $2::text) b using (flight_id)
where a.content is distinct from b.content
order by 1
