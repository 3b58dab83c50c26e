-- Submissions with a smaller id, the newest first, or one of them; of one owner, or of all.
select s.submission_id, s.owner::text, s.asked, s.content_type, s.state, s.kept_in, s.bytes, s.sha256, s.job_id, s.problems,
    s.message, s.created_at, s.stored_at, s.ended_at, s.removed_at
from pcfarm.submission s
where s.submission_id < $1 and ($2::bigint is null or s.submission_id = $2) and ($3::text is null or s.state = $3)
    and ($5::text is null or s.owner = $5)
order by s.submission_id desc
limit $4
