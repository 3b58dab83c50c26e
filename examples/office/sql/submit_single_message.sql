select pcfarm.submit('a word to the dean', 'single_message', $$
    select 'dean' as key, jsonb_build_object('to', jsonb_build_array('dean@example.org'), 'subject', 'Room 12',
        'body', 'The room is free on Monday.') as payload
$$);
