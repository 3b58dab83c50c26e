-- How long ago a server was last heard by the database, unless it has been stopped.
select extract(epoch from clock_timestamp() - s.heard_at)::float8 as seconds
from pcfarm.server s
where s.server_id = $1 and s.stopped_at is null
