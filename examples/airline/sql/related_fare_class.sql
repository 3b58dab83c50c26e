-- $1: keys of the checkout's problems, not needed: these few rows have no key and serve every problem, once per
-- checkout. One row per distance band; a flight with a stop needs several bands.
select null::text as key, c.distance_band as band, array_agg(c.fare_fixed order by c.class) as fare_fixed,
       array_agg(c.fare_per_mile order by c.class) as fare_per_mile,
       array_agg(c.no_show_rate order by c.class) as no_show_rate, min(c.no_show_weight) as no_show_weight
from airline.fare_class c
where cardinality($1::text[]) > 0
group by c.distance_band
