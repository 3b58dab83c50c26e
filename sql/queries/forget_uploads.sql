-- Uploads that are kept no longer, and those that nobody goes on sending: their ids, and where they are. At most 100, of the
-- database's and of those that are in a place ($1) that whoever asks can clear.
with old as (
    select s.submission_id, s.state, s.kept_in from pcfarm.submission s, pcfarm.intake i
    where s.kept_in in ('database', $1)
        and ((s.removed_at is null and s.state in ('queued', 'refused') and s.stored_at < clock_timestamp() - i.keep)
            or (s.state = 'receiving' and s.touched_at < clock_timestamp() - interval '1 hour'))
    order by s.submission_id limit 100 for update of s skip locked),
gone as (delete from pcfarm.submission_piece p using old o where p.submission_id = o.submission_id),
unfinished as (
    delete from pcfarm.submission s using old o where s.submission_id = o.submission_id and o.state = 'receiving'),
kept as (
    update pcfarm.submission s set removed_at = clock_timestamp() from old o
    where s.submission_id = o.submission_id and o.state <> 'receiving')
select o.submission_id, o.kept_in from old o
