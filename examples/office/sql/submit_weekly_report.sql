-- Repeated, it is the same job: one report a week.
select pcfarm.submit('week until ' || current_date, 'weekly_report', $$
    select current_date::text as key, '{"to": ["dean@example.org"], "subject": "The week in our courses"}'::jsonb as payload
$$, 1, jsonb_build_object('unique_key', 'week until ' || current_date));
