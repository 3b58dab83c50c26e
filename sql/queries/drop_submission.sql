-- An upload that did not come to its end. Nothing: it did.
with dropped as (
    delete from pcfarm.submission s where s.submission_id = $1 and s.state = 'receiving' returning s.submission_id),
pieces as (
    delete from pcfarm.submission_piece p using dropped d where p.submission_id = d.submission_id)
select d.submission_id from dropped d
