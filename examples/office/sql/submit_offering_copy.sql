select pcfarm.submit('next spring', 'offering_copy', $$
    select course_id as key, jsonb_build_object('from', '2026 spring', 'to', '2027 spring', 'course', course_id) as payload
    from office.offering where term = '2026 spring'
$$);
