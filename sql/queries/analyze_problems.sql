-- Tells the planner how problems are spread after large loads that came by COPY, unless somebody else is at it. Who loads
-- otherwise does so itself, just before the lanes are there. What somebody analysed without seeing these problems (they were not
-- committed, or opened within a second) is left to autovacuum; so is all where nothing says when it was done last.
select pcfarm.analyze_after_load(max(l.problems)) from pcfarm.lane l
where current_setting('track_counts')::boolean and not l.exhausted and l.loaded_at > interval '1 second' + (
    select coalesce(greatest(s.last_analyze, s.last_autoanalyze), '-infinity') from pg_stat_user_tables s
    where s.relid = 'pcfarm.problem'::regclass)
