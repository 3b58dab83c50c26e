select s.name, s.value, s.said_at, extract(epoch from s.holds_for)::float8 as holds_for,
    s.said_at + s.holds_for > clock_timestamp() as known
from pcfarm.signal s order by s.name limit 10000
