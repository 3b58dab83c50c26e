-- Tells the planner how problems are spread after large loads, unless somebody else is at it or that has been done since. Who
-- loads does so itself, just before the lanes are there; what came by COPY has not, and whoever found another at it has not.
select pcfarm.analyze_after_load(max(l.problems)) from pcfarm.lane l
where not l.exhausted and l.loaded_at > interval '1 second' + (
    select coalesce(greatest(s.last_analyze, s.last_autoanalyze), '-infinity') from pg_stat_user_tables s
    where s.relid = 'pcfarm.problem'::regclass)
