-- A piece of an upload, while that is being received.
with touched as (
    update pcfarm.submission s set touched_at = clock_timestamp() where s.submission_id = $1 and s.state = 'receiving'
    returning s.submission_id)
insert into pcfarm.submission_piece (submission_id, number, content) select t.submission_id, $2, $3 from touched t
