-- A piece of a file, while that is coming. No row: it took so long that it was given up.
with touched as (
    update pcfarm.file f set touched_at = clock_timestamp() where f.file_id = $1 and f.sha256 is null
    returning f.file_id)
insert into pcfarm.file_piece (file_id, number, content) select t.file_id, $2, $3 from touched t returning number
