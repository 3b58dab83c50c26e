-- What was kept of these, that the caller has locked, is gone, or goes with this.
with gone as (delete from pcfarm.submission_piece p where p.submission_id = any ($1)),
unfinished as (
    delete from pcfarm.submission s where s.submission_id = any ($1) and s.state = 'receiving')
update pcfarm.submission s set removed_at = clock_timestamp() where s.submission_id = any ($1) and s.state <> 'receiving'
