-- A file that problems of one user ($1), or of anybody, have made.
select f.file_id, f.bytes
from pcfarm.output o
join pcfarm.file f on f.sha256 = o.sha256
where o.sha256 = $2 and ($1::text is null or o.owner = $1::text)
limit 1
