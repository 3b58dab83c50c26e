-- All of it is here: from now on it is loaded, whatever crashes. Said again, by whoever has not heard the answer, it is
-- stored all the same.
with stored as (
    update pcfarm.submission s set state = 'stored', sha256 = $2, bytes = $3, stored_at = clock_timestamp(),
        next_attempt_at = clock_timestamp()
    where s.submission_id = $1 and s.state = 'receiving'
    returning s.submission_id)
select s.submission_id from stored s
union all
select s.submission_id from pcfarm.submission s where s.submission_id = $1 and s.state <> 'receiving'
