-- Offsets from UTC, in seconds, that PostgreSQL gives zones ($1) at instants ($2, seconds since 1970, one for each); none for a zone that it
-- does not know. PostgreSQL compares names of zones without case, as the server does.
with known as materialized (select k.name from pg_timezone_names k)
select z.name, z.at, case when k.name is not null then
    extract(epoch from (to_timestamp(z.at) at time zone k.name) - (to_timestamp(z.at) at time zone 'UTC'))::bigint end as seconds
from unnest($1::text[], $2::bigint[]) as z(name, at)
left join known k on lower(k.name) = lower(z.name)
