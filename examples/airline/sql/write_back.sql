-- $1: keys of the accepted problems; $2: their results, in the same order. Arrays come as text literals, whose
-- cast is far cheaper than taking a JSON array apart. A flight that is planned again replaces its plan.
insert into airline.flight_forecast (
    flight_id, expected_revenue, standard_error, seats, authorised, run, variant, seats_imputed_by,
    demand, deviation, no_show_percent, protection, booking_limit)
select accepted.key::bigint, (result->>'revenue')::double precision, (result->>'standard_error')::double precision,
       (result->>'seats')::smallint, (result->>'authorised')::smallint, result->>'run', result->>'variant',
       result->>'seats_imputed_by', (result->>'demand')::real[], (result->>'deviation')::real[],
       (result->>'no_show')::real[], (result->>'protection')::real[], (result->>'booking_limit')::smallint[]
from unnest($1::text[], $2::jsonb[]) accepted (key, result)
on conflict (run, flight_id) do update set
    expected_revenue = excluded.expected_revenue, standard_error = excluded.standard_error,
    seats = excluded.seats, authorised = excluded.authorised, variant = excluded.variant,
    seats_imputed_by = excluded.seats_imputed_by, demand = excluded.demand, deviation = excluded.deviation,
    no_show_percent = excluded.no_show_percent, protection = excluded.protection,
    booking_limit = excluded.booking_limit
