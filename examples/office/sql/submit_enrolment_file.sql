-- A small file, as `office-submit queued FILE` puts it in.
with file as (
    insert into office.upload (file_name, submitter) values ('small.csv', 'office@example.org') returning upload_id)
insert into office.upload_piece (upload_id, piece, first_line, text)
select upload_id, 1, 1, E'person,course\nP20,MATH1\nP21,MATH1\nP22,MAGIC9\n' from file;
select office.submit_upload(max(upload_id)) from office.upload;
