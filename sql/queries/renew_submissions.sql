-- Attempts that go on, for another $3 seconds. Returns those that somebody else has taken over; one that has ended is not
-- among them.
with mine as (
    select m.submission_id, m.attempt from unnest($1::bigint[], $2::integer[]) as m(submission_id, attempt)),
renewed as (
    update pcfarm.submission s set next_attempt_at = clock_timestamp() + make_interval(secs => $3)
    from mine m
    where s.submission_id = m.submission_id and s.attempts = m.attempt and s.state = 'stored')
select m.submission_id from mine m
join pcfarm.submission s on s.submission_id = m.submission_id
where s.attempts <> m.attempt and s.state = 'stored'
