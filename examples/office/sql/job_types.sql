-- The office's job types: two roles with just the rights that they need, controllers, related reads and write-backs.
-- Safe to run again.
do $$
begin
    create role office_reader login;
exception when duplicate_object or unique_violation then null;
end $$;
do $$
begin
    create role office_writer nologin;
exception when duplicate_object or unique_violation then null;
end $$;
grant usage on schema office to office_reader, office_writer;
grant select on all tables in schema office to office_reader, office_writer;
grant insert on office.enrolment, office.line_outcome, office.offering to office_writer;
grant update on office.course, office.upload to office_writer;

-- One line of enrolments. Related reads see keys, so all of it is there: [upload, line, person, course]. -------------

select pcfarm.create_job_type('enrolment', 'enrolment', '{
    "description": "enrols one person in one course",
    "default_priority": 2, "default_duration": "1 hour", "max_attempts": 3, "retry_delay": "2 seconds",
    "time_limit": "5 minutes", "keep_results": false,
    "read_role": "office_reader", "write_role": "office_writer"}');

select pcfarm.set_related_read('enrolment', 'facts', $read$
    select k.key, p.person_id is not null as person_exists, c.course_id is not null as course_exists,
        coalesce(c.enrolled >= c.capacity, false) as is_full, e.person_id is not null as is_enrolled
    from unnest($1::text[]) k (key)
    left join office.person p on p.person_id = k.key::jsonb ->> 2
    left join office.course c on c.course_id = k.key::jsonb ->> 3
    left join office.enrolment e on e.course_id = k.key::jsonb ->> 3 and e.person_id = k.key::jsonb ->> 2
$read$);

-- What was read may have changed meanwhile, so what counts is decided here, under the locks of the courses. A line that
-- has its outcome already keeps it: whatever is repeated changes nothing.
select pcfarm.set_write_back('enrolment', $write_back$
    select from office.course c
    where c.course_id in (select s ->> 'course' from unnest($2) s)
    order by c.course_id for update;

    with line as (
        select l.* from (
            select (s ->> 'upload')::bigint as upload_id, (s ->> 'line')::integer as line, s ->> 'person' as person_id,
                s ->> 'course' as course_id, s ->> 'refused' as refused
            from unnest($2) s) l
        where not exists (
            select from office.line_outcome o where o.upload_id = l.upload_id and o.line = l.line)),
    new as (
        select distinct on (l.course_id, l.person_id) l.* from line l
        where l.refused is null and not exists (
            select from office.enrolment e where e.course_id = l.course_id and e.person_id = l.person_id)
        order by l.course_id, l.person_id, l.upload_id, l.line),
    fitting as (
        select n.* from (
            select n.*, row_number() over (partition by n.course_id order by n.upload_id, n.line) as place from new n) n
        join office.course c on c.course_id = n.course_id and c.enrolled + n.place <= c.capacity),
    enrolled as (
        insert into office.enrolment (course_id, person_id) select f.course_id, f.person_id from fitting f
        returning course_id),
    counted as (
        update office.course c set enrolled = c.enrolled + e.people
        from (select e.course_id, count(*) as people from enrolled e group by e.course_id) e
        where e.course_id = c.course_id)
    insert into office.line_outcome (upload_id, line, person_id, course_id, refused)
    select l.upload_id, l.line, l.person_id, l.course_id,
        case when f.line is not null then null
             when l.refused is not null then l.refused
             when n.line is not null then format('course %s is full', l.course_id)
             else format('person %s is enrolled in course %s already', l.person_id, l.course_id) end
    from line l
    left join new n on n.upload_id = l.upload_id and n.line = l.line
    left join fitting f on f.upload_id = l.upload_id and f.line = l.line
$write_back$);

-- A file of enrolments, piece by piece. Its key is upload/piece. ----------------------------------------------------

select pcfarm.create_job_type('enrolment_file', 'enrolment_file', '{
    "description": "reads a piece of a CSV file, and enqueues its lines and the next piece",
    "default_priority": 2, "default_duration": "1 hour", "max_attempts": 3, "retry_delay": "2 seconds",
    "time_limit": "5 minutes", "read_role": "office_reader", "write_role": "office_writer"}');

select pcfarm.set_related_read('enrolment_file', 'piece', $read$
    select k.key, p.first_line, p.text,
        exists (select from office.upload_piece n where n.upload_id = p.upload_id and n.piece = p.piece + 1) as more
    from unnest($1::text[]) k (key)
    join office.upload_piece p
        on p.upload_id = split_part(k.key, '/', 1)::bigint and p.piece = split_part(k.key, '/', 2)::integer
$read$);

-- Lines that are no enrolments at all; and after the last piece, how many lines there were.
select pcfarm.set_write_back('enrolment_file', $write_back$
    insert into office.line_outcome (upload_id, line, refused)
    select (s ->> 'upload')::bigint, (r ->> 'line')::integer, r ->> 'refused'
    from unnest($2) s cross join jsonb_array_elements(s -> 'refused') r
    on conflict do nothing;

    update office.upload u set lines = (s ->> 'lines_in_all')::integer
    from unnest($2) s
    where u.upload_id = (s ->> 'upload')::bigint and s ->> 'lines_in_all' is not null
$write_back$);

-- Messages ----------------------------------------------------------------------------------------------------------

-- An interrupted message is sent again: few attempts, and a pause in which the relay may come back.
select pcfarm.create_job_type('single_message', 'message', '{
    "description": "sends one message to up to 20 recipients",
    "default_priority": 3, "default_duration": "15 minutes", "max_attempts": 4, "retry_delay": "30 seconds",
    "time_limit": "10 minutes"}');

-- A mailing and its messages. What reads its recipients is of a type of its own, and counts as one message: the profile holds
-- for all problems of the job.
select pcfarm.create_job_type('mailing', 'message', '{
    "description": "sends the messages of mailings, so many an hour",
    "default_priority": 0, "default_duration": "7 days", "max_attempts": 4, "retry_delay": "30 seconds",
    "time_limit": "10 minutes"}');

-- Its key is mailing/recipient, the last one that was read.
select pcfarm.create_job_type('mailing_recipients', 'mailing', '{
    "description": "reads the recipients of a mailing in steps, and enqueues their messages",
    "max_attempts": 3, "retry_delay": "2 seconds", "time_limit": "5 minutes", "read_role": "office_reader"}');

select pcfarm.set_related_read('mailing_recipients', 'recipients', $read$
    select k.key, r.recipient_id, r.email
    from unnest($1::text[]) k (key)
    cross join lateral (
        select r.recipient_id, r.email from office.mailing_recipient r
        where r.mailing_id = split_part(k.key, '/', 1)::bigint and r.recipient_id > split_part(k.key, '/', 2)::bigint
        order by r.recipient_id limit 500) r
$read$);

-- The customs of the place: by day few and one at a time, at night and on Thursday and Friday many. A message counts as
-- many as it has recipients. What is there stays: with an entry that is made anew its hour begins anew.
select pcfarm.set_profile('mailing', entry)
from (values
    ('{"weekdays": "sat-wed", "from": "07:00", "to": "24:00",
        "time_zone": "Asia/Tehran", "problems_per_hour": 5, "problems_per_checkout": 1}'::jsonb),
    ('{"weekdays": "sat-wed", "from": "00:00", "to": "07:00",
        "time_zone": "Asia/Tehran", "problems_per_hour": 1000, "problems_per_checkout": 5}'),
    ('{"weekdays": "thu,fri",
        "time_zone": "Asia/Tehran", "problems_per_hour": 1000, "problems_per_checkout": 5}')) e(entry)
where not exists (select from pcfarm.profile p where p.job_type = 'mailing');

-- Reports: what a related read returns as lines of text, mailed. ----------------------------------------------------

-- The key is the upload.
select pcfarm.create_job_type('enrolment_errors', 'report', '{
    "description": "tells who submitted a file which lines were refused",
    "default_priority": 2, "default_duration": "1 hour", "max_attempts": 4, "retry_delay": "30 seconds",
    "time_limit": "10 minutes", "read_role": "office_reader"}');

select pcfarm.set_related_read('enrolment_errors', 'report', $read$
    select k.key, t.text
    from unnest($1::text[]) k (key)
    join office.upload u on u.upload_id = k.key::bigint
    cross join lateral (
        select count(*) as known, count(*) filter (where o.refused is null) as enrolled from office.line_outcome o
        where o.upload_id = u.upload_id) n
    cross join lateral (
        select 0 as place, format('%s: %s of %s lines are enrolled, %s are refused.', u.file_name, n.enrolled,
            coalesce(u.lines, n.known), n.known - n.enrolled) as text
        union all
        select 1, case when u.lines is null then 'The file was not read to its end; please ask the office.'
            else format('%s lines have no outcome; please ask the office.', u.lines - n.known) end
        where n.known is distinct from u.lines
        union all
        (select 1 + o.line, format('line %s: %s', o.line, o.refused) from office.line_outcome o
        where o.upload_id = u.upload_id and o.refused is not null order by o.line limit 1000)
        union all
        select 2147483647, format('and %s more.', n.known - n.enrolled - 1000) where n.known - n.enrolled > 1000) t
    order by t.place
$read$);

-- The key is the last day of the week.
select pcfarm.create_job_type('weekly_report', 'report', '{
    "description": "mails how full the courses are",
    "default_duration": "12 hours", "max_attempts": 4, "retry_delay": "30 seconds", "time_limit": "10 minutes",
    "read_role": "office_reader"}');

select pcfarm.set_related_read('weekly_report', 'report', $read$
    select k.key, format('%s (%s): %s of %s places, %s in this week', c.title, c.course_id, c.enrolled, c.capacity, (
        select count(*) from office.enrolment e
        where e.course_id = c.course_id and e.enrolled_at >= k.key::date - 6 and e.enrolled_at < k.key::date + 1)) as text
    from unnest($1::text[]) k (key)
    cross join office.course c
    order by c.title, c.course_id limit 10000
$read$);

-- The key is the day.
select pcfarm.create_job_type('daily_logon_report', 'report', '{
    "description": "mails who logged on how often",
    "default_duration": "6 hours", "max_attempts": 4, "retry_delay": "30 seconds", "time_limit": "10 minutes",
    "read_role": "office_reader"}');

select pcfarm.set_related_read('daily_logon_report', 'report', $read$
    select k.key, format('%s (%s): %s', p.name, p.person_id, l.times) as text
    from unnest($1::text[]) k (key)
    cross join lateral (
        select l.person_id, count(*) as times from office.logon l
        where l.at >= k.key::date and l.at < k.key::date + 1
        group by l.person_id order by 2 desc, 1 limit 10000) l
    join office.person p on p.person_id = l.person_id
    order by l.times desc, p.person_id
$read$);

-- Last term's offerings into the next one: no code but this statement. ----------------------------------------------

select pcfarm.create_job_type('offering_copy', 'echo', '{
    "description": "copies a term''s offerings of a course into another term",
    "default_priority": 1, "default_duration": "1 hour", "max_attempts": 3, "time_limit": "5 minutes",
    "write_role": "office_writer"}');

select pcfarm.set_write_back('offering_copy', $write_back$
    insert into office.offering (term, course_id, teacher)
    select s ->> 'to', o.course_id, o.teacher
    from unnest($2) s
    join office.offering o on o.term = s ->> 'from' and o.course_id = s ->> 'course'
    on conflict do nothing
$write_back$);

-- Puts an upload into the queue: a job that reads it and, in the same transaction, one that reports when that has ended.
create or replace function office.submit_upload(upload bigint)
returns bigint language plpgsql as $$
declare
    file   office.upload;
    job    bigint;
    report bigint;
begin
    select u.* into strict file from office.upload u where u.upload_id = upload;
    job := pcfarm.create_job('enrolments of ' || file.file_name, 'enrolment_file');
    insert into pcfarm.problem (job_id, key, payload, batch_order) values (job, upload || '/1', '{}', 0);
    report := pcfarm.create_job('errors of ' || file.file_name, 'enrolment_errors',
        jsonb_build_object('after_ended', jsonb_build_array(job)));
    insert into pcfarm.problem (job_id, key, payload, batch_order)
    values (report, upload::text, jsonb_build_object('to', jsonb_build_array(file.submitter),
        'subject', 'Your enrolments: ' || file.file_name), 0);
    perform pcfarm.open_job(job), pcfarm.open_job(report);
    return job;
end $$;
