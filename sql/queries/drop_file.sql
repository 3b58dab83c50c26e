-- It does not come to its end.
delete from pcfarm.file f where f.file_id = $1 and f.sha256 is null
