-- The airline's own schema. Safe to run again; drops nothing.
--
-- Real: the departures and the seat counts of the registry. Imputed: seat counts that the registry lacks or has
-- wrong. Modelled: everything about bookings, fares, no-shows, seasons and stops. Comments say which is which.

create schema if not exists airline;

create table if not exists airline.aircraft_type (
    aircraft_type_id smallint primary key,
    seats smallint not null check (seats > 0),
    imputed_by text,
    registry_seats smallint,
    flights integer not null,
    check (imputed_by is not null or registry_seats = seats)
);
comment on table airline.aircraft_type is 'Cabins that fly: one row per seat count and origin of that count.';
comment on column airline.aircraft_type.seats is 'Real where imputed_by is null, else imputed.';
comment on column airline.aircraft_type.imputed_by is 'The rule that supplied the seats; null when the registry did.';
comment on column airline.aircraft_type.registry_seats is
    'Real: the registry''s number. Fewer than 20 are taken for an error and imputed; null is a missing entry.';
comment on column airline.aircraft_type.flights is 'Imported flights with this cabin.';

create table if not exists airline.flight (
    flight_id bigint primary key,
    market_id integer not null,
    aircraft_type_id smallint not null references airline.aircraft_type,
    flight_date date not null,
    departure time not null,
    flight_number integer not null,
    distance_miles smallint not null,
    departed boolean not null,
    carrier text not null,
    origin text not null,
    destination text not null,
    hub text,
    leg_miles smallint[] not null,
    segment_share real[] not null,
    check ((hub is null) = (cardinality(leg_miles) = 1))
);
comment on table airline.flight is
    'Real departures from New York''s airports in 2013, one row each (hub, leg_miles, segment_share: modelled).';
comment on column airline.flight.flight_id is 'Line of the flight in the source file, from 1.';
comment on column airline.flight.market_id is 'Flights of one carrier, number and route share a booking history.';
comment on column airline.flight.hub is
    'Modelled: the stop of a flight that is planned with two legs. The real flight was non-stop.';
comment on column airline.flight.leg_miles is 'Modelled for two legs; for one leg the real distance.';
comment on column airline.flight.segment_share is
    'Modelled: share of demand by segment, in the order first leg, whole way, second leg.';

create table if not exists airline.fare_class (
    distance_band smallint not null,
    class smallint not null check (class between 1 and 10),
    code text not null,
    fare_fixed real not null,
    fare_per_mile real not null,
    demand_share real not null,
    no_show_rate real not null,
    no_show_weight real not null,
    primary key (distance_band, class)
);
comment on table airline.fare_class is
    'Modelled: ten booking classes in each distance band (0: under 500 miles, 1: 1000, 2: 1700, 3: beyond), dearest first.';
comment on column airline.fare_class.fare_fixed is 'Dollars; the fare is fare_fixed + fare_per_mile × miles.';
comment on column airline.fare_class.demand_share is 'Share of the class in the demand that the history was drawn from.';
comment on column airline.fare_class.no_show_rate is 'Prior rate, worth no_show_weight bookings against the history.';

create table if not exists airline.booking_history (
    market_id integer primary key,
    departures smallint not null,
    bookings bytea not null,
    -- 1 season factor + 10 classes × (11 points + departure) + 10 no-shows
    check (length(bookings) = departures * 131)
);
comment on table airline.booking_history is
    'Modelled: bookings of comparable past departures of a market. airline.booking_curve shows it as rows.';
comment on column airline.booking_history.bookings is
    'One byte a number; per departure, oldest first: season factor in percent; for each class the bookings on hand at '
    '120, 90, 60, 45, 30, 21, 14, 10, 7, 3, 1 and 0 days before departure; no-shows of each class.';

create table if not exists airline.season (
    season_id smallint primary key,
    name text not null,
    first_day date not null,
    last_day date not null,
    destination text,
    demand_factor real not null check (demand_factor > 0),
    check (first_day <= last_day)
);
comment on table airline.season is
    'Seasons, New York holidays and events of 2013: the dates are real, the demand factors modelled. Factors multiply.';
comment on column airline.season.destination is 'Where it applies; null is everywhere.';

create table if not exists airline.flight_forecast (
    flight_id bigint not null,
    expected_revenue double precision not null,
    standard_error double precision not null,
    seats smallint not null,
    authorised smallint not null,
    modelled boolean not null default true check (modelled),
    run text not null,
    variant text not null check (variant in ('leg', 'segment')),
    seats_imputed_by text,
    demand real[] not null check (cardinality(demand) = 110),
    deviation real[] not null check (cardinality(deviation) = 110),
    no_show_percent real[] not null check (cardinality(no_show_percent) = 10),
    protection real[] not null,
    booking_limit smallint[] not null,
    primary key (run, flight_id)
);
-- Rows of some 1.3 kB stay in the table: nothing reads them often enough to pay for compressing them.
alter table airline.flight_forecast alter demand set storage plain, alter deviation set storage plain;
comment on table airline.flight_forecast is
    'Plans of a night. All of it rests on modelled bookings and fares; seats_imputed_by says whether the seats are real.';
comment on column airline.flight_forecast.run is 'The night; several may stand side by side.';
comment on column airline.flight_forecast.demand is
    '110 forecasts of demand to come: ten classes, each at the 11 data-collection points. See airline.forecast.';
comment on column airline.flight_forecast.deviation is 'Standard deviation of each forecast.';
comment on column airline.flight_forecast.authorised is 'Bookings authorised on each leg, overbooking included.';
comment on column airline.flight_forecast.protection is
    'EMSR-b protection levels at the opening of bookings: nine for each leg (of classes, or of virtual buckets).';
comment on column airline.flight_forecast.booking_limit is
    'Seats for sale at the opening of bookings: ten classes for each segment.';

create or replace view airline.forecast as
select p.run, p.flight_id, p.variant, c.code as class, d.days_before,
       p.demand[i.i] as demand_to_come, p.deviation[i.i] as standard_deviation, p.modelled
from airline.flight_forecast p
cross join generate_series(1, 110) i (i)
join airline.fare_class c on c.distance_band = 0 and c.class = (i.i - 1) / 11 + 1
join unnest(array[120, 90, 60, 45, 30, 21, 14, 10, 7, 3, 1]) with ordinality d (days_before, point)
     on d.point = (i.i - 1) % 11 + 1;
comment on view airline.forecast is 'Modelled: one row per forecast, 110 for each flight of a run.';

create or replace view airline.revenue_modelled as
select p.run, f.flight_date, f.carrier, f.flight_number, f.origin, f.hub as modelled_stop, f.destination,
       p.variant, p.seats, coalesce('imputed: ' || p.seats_imputed_by, 'registry') as seats_from, p.authorised,
       round(p.expected_revenue::numeric, 2) as modelled_revenue_usd,
       round(p.standard_error::numeric, 2) as modelled_revenue_standard_error_usd,
       p.flight_id
from airline.flight_forecast p
join airline.flight f using (flight_id);
comment on view airline.revenue_modelled is 'Expected revenue by flight. Fares and bookings are modelled, not any airline''s.';

create or replace view airline.booking_curve as
select h.market_id, n.departure, c.code as class, d.days_before,
       get_byte(h.bookings, (n.departure - 1) * 131 + 1 + (c.class - 1) * 12 + d.point::integer - 1) as on_hand,
       get_byte(h.bookings, (n.departure - 1) * 131) as season_percent,
       get_byte(h.bookings, (n.departure - 1) * 131 + 121 + c.class - 1) as no_shows
from airline.booking_history h
cross join generate_series(1, h.departures::integer) n (departure)
cross join unnest(array[120, 90, 60, 45, 30, 21, 14, 10, 7, 3, 1, 0]) with ordinality d (days_before, point)
join airline.fare_class c on c.distance_band = 0;
comment on view airline.booking_curve is 'Modelled: the booking history as rows, departures oldest first.';

-- The problems of a night, in the order of the table, so that each checkout reads neighbouring pages.
create or replace function airline.problem(run text, variant text)
returns table (key text, payload jsonb, group_key text) language sql stable parallel safe
begin atomic
    select f.flight_id::text, jsonb_build_object('run', run, 'variant', variant), f.market_id::text
    from airline.flight f;
end;
comment on function airline.problem is
    'What to load for a night: one problem per flight. The group is the market; a flight is never split anyway.';
