-- What is mailed is in the job's parameters, once. At most so many recipients share a message.
insert into office.mailing_recipient (mailing_id, recipient_id, email)
select 1, row_number() over (order by person_id), email from office.person
on conflict do nothing;
select pcfarm.submit('newsletter', 'mailing', $$
    select '1/0' as key, '{}'::jsonb as payload, 'mailing_recipients' as job_type
$$, 1, '{
    "parameters": {"subject": "News of the faculty", "body": "The term begins on Saturday.", "recipients_per_message": 1}}');
