-- Seasons, holidays and events around New York in 2013. Dates are real; factors are modelled.
insert into airline.season (season_id, name, first_day, last_day, destination, demand_factor) values
    (1, 'winter', '2013-01-01', '2013-03-19', null, 0.92),
    (2, 'spring', '2013-03-20', '2013-06-20', null, 1.00),
    (3, 'summer', '2013-06-21', '2013-09-02', null, 1.10),
    (4, 'autumn', '2013-09-03', '2013-12-31', null, 0.96),
    (5, 'New Year', '2013-01-01', '2013-01-06', null, 1.15),
    (6, 'Martin Luther King Day', '2013-01-18', '2013-01-21', null, 1.06),
    (7, 'Super Bowl XLVII in New Orleans', '2013-01-31', '2013-02-04', 'MSY', 1.35),
    (8, 'Presidents'' Day and winter recess', '2013-02-15', '2013-02-24', null, 1.10),
    (9, 'Passover and Easter', '2013-03-22', '2013-04-02', null, 1.14),
    (10, 'Memorial Day', '2013-05-24', '2013-05-27', null, 1.08),
    (11, 'Independence Day', '2013-07-03', '2013-07-07', null, 1.07),
    (12, 'Labor Day', '2013-08-30', '2013-09-02', null, 1.05),
    (13, 'Rosh Hashanah', '2013-09-04', '2013-09-06', null, 0.95),
    (14, 'Columbus Day', '2013-10-11', '2013-10-14', null, 1.05),
    (15, 'Veterans Day', '2013-11-08', '2013-11-11', null, 1.03),
    (16, 'Thanksgiving', '2013-11-26', '2013-12-01', null, 1.25),
    (17, 'Christmas', '2013-12-20', '2013-12-31', null, 1.22);
