-- Uploads in one place ($1) that are kept no longer, and those that nobody goes on sending: the first $3 behind one ($2). They are
-- the caller's to the end of its transaction.
select s.submission_id from pcfarm.submission s, pcfarm.intake i
where s.kept_in = $1 and s.submission_id > $2 and (select pcfarm.clock_is_proven())
    and ((s.removed_at is null and s.state in ('queued', 'refused') and s.stored_at < clock_timestamp() - i.keep)
        or (s.state = 'receiving' and s.touched_at < clock_timestamp() - interval '1 hour'))
order by s.submission_id limit $3 for update of s skip locked
