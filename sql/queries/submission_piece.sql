select p.content from pcfarm.submission_piece p where p.submission_id = $1 and p.number = $2
