-- Time zones of schedules and digests, of the database (by its own setting), and of its server (initdb sets log_timezone).
select min(z.name) as name from (
    select s.time_zone as name from pcfarm.schedule s
    union all select s.time_zone from pcfarm.subscription s where s.next_digest_at is not null
    union all select current_setting('log_timezone')
    union all select split_part(c.setting, '=', 2)
        from pg_db_role_setting d cross join lateral unnest(d.setconfig) as c(setting)
        where d.setrole = 0 and d.setdatabase in (0, (select b.oid from pg_database b where b.datname = current_database()))
            and lower(c.setting) like 'timezone=%') z
-- Names of files, which lead elsewhere on each machine.
where lower(z.name) not in ('localtime', 'posixrules', 'factory')
group by lower(z.name)
order by min(z.name) limit 200
