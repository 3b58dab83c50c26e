select p.content from pcfarm.file_piece p where p.file_id = $1 and p.number = $2
