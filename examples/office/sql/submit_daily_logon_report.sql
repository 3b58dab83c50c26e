select pcfarm.submit('log-ons of ' || current_date - 1, 'daily_logon_report', $$
    select (current_date - 1)::text as key, '{"to": ["office@example.org"], "subject": "Yesterday''s log-ons"}'::jsonb as payload
$$, 1, jsonb_build_object('unique_key', 'log-ons of ' || current_date - 1));
