-- Files of their holders, the newest first; of one of them ($1), with a smaller id ($2), of this hash ($3).
select h.holder_id, f.file_id, f.sha256, f.bytes, h.name, h.owner::text as owner, h.put_at,
    array(select m.job_type from pcfarm.job_type_module m where m.sha256 = f.sha256 and m.replaced_at is null
        order by m.job_type) as job_types
from pcfarm.file_holder h
join pcfarm.file f on f.file_id = h.file_id
where ($1::text is null or h.owner = $1::text) and h.holder_id < $2 and ($3::bytea is null or f.sha256 = $3)
order by h.holder_id desc
limit $4
