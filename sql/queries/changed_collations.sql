-- Collations of this database and of columns of PC Farm whose version has changed since indexes were built with them. A version
-- that is not recorded, as after pg_upgrade, cannot be compared, and PostgreSQL refuses to refresh it.
select format('the default collation of database %s', d.datname) as name, d.datcollversion as recorded,
    pg_database_collation_actual_version(d.oid) as actual, format('alter database %I refresh collation version', d.datname) as refresh
from pg_database d
where d.datname = current_database() and d.datcollversion <> pg_database_collation_actual_version(d.oid)
union all
select format('collation %s', c.oid::regcollation), c.collversion, pg_collation_actual_version(c.oid),
    format('alter collation %s refresh version', c.oid::regcollation)
from pg_collation c
where c.collprovider in ('c', 'i') and c.collversion <> pg_collation_actual_version(c.oid)
    and c.oid in (
        select a.attcollation from pg_attribute a join pg_class t on t.oid = a.attrelid where t.relnamespace = 'pcfarm'::regnamespace)
