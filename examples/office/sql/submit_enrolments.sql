-- Enrolments from a table instead of a file: an upload without a text, and a problem for each line.
with import as (
    insert into office.upload (file_name, submitter) values ('import of this term', 'office@example.org') returning upload_id)
select pcfarm.submit('import of this term', 'enrolment', format($$
    select jsonb_build_array(%s, n, p.person_id, 'MATH1')::text as key, 'null'::jsonb as payload
    from (select person_id, row_number() over (order by person_id) as n from office.person limit 10) p
$$, upload_id)) from import;
