-- The airline's job type: two roles with just the rights that it needs, its related reads and its write-back.
-- Safe to run again. The statements themselves are in the files beside this one; the import tool fills them in.
do $$
begin
    create role airline_reader login;
exception when duplicate_object then null;
end $$;
do $$
begin
    create role airline_planner nologin;
exception when duplicate_object then null;
end $$;
grant usage on schema airline to airline_reader, airline_planner;
grant select on airline.flight, airline.aircraft_type, airline.fare_class, airline.booking_history, airline.season
    to airline_reader;
grant select, insert, update on airline.flight_forecast to airline_planner;

select pcfarm.create_job_type('airline', 'airline', '{
    "description": "demand, no-show and revenue forecasts with booking limits, one flight a problem",
    "max_attempts": 3,
    "time_limit": "10 minutes",
    "keep_results": false,
    "read_role": "airline_reader",
    "write_role": "airline_planner"}');
