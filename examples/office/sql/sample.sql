-- Something to try it with: 200 people, three courses of which one is small, log-ons of yesterday, last spring's offerings.
insert into office.person (person_id, name, email)
select 'P' || n, 'Person ' || n, 'p' || n || '@example.org' from generate_series(1, 200) n
on conflict do nothing;
insert into office.course (course_id, title, capacity) values
    ('MATH1', 'Mathematics 1', 100), ('PHYS1', 'Physics 1', 100), ('SEM', 'Seminar', 5)
on conflict do nothing;
insert into office.logon (person_id, at)
select 'P' || n, current_date - interval '12 hours' from generate_series(1, 30) n;
insert into office.offering (term, course_id, teacher)
select '2026 spring', course_id, 'the teacher of ' || course_id from office.course
on conflict do nothing;
