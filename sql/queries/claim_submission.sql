-- The next stored submission to load, unless intake is paused. Whoever claims one has ten minutes before another one tries:
-- both may then be at it, and one of them succeeds.
update pcfarm.submission s set attempts = s.attempts + 1, next_attempt_at = clock_timestamp() + interval '10 minutes'
where s.submission_id = (
    select o.submission_id from pcfarm.submission o
    where o.state = 'stored' and o.next_attempt_at <= clock_timestamp()
        and not exists (select from pcfarm.intake i where i.paused_since is not null)
    order by o.next_attempt_at, o.submission_id limit 1 for update skip locked)
returning s.submission_id, s.owner::text, s.asked, s.content_type, s.kept_in, s.bytes, s.sha256, s.attempts
