-- Offsets from UTC, in seconds, that PostgreSQL gives zones ($1) at instants ($2, seconds since 1970); none for a zone that it does not
-- know.
select z.name, t.at, case when k.name is not null then
    extract(epoch from (to_timestamp(t.at) at time zone k.name) - (to_timestamp(t.at) at time zone 'UTC'))::bigint end as seconds
from unnest($1::text[]) as z(name)
left join pg_timezone_names k on k.name = z.name
cross join unnest($2::bigint[]) as t(at)
