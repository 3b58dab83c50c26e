-- What was acknowledged under the key of a submission that is being received, and whether it is the same: asked and sent, in
-- whatever trace.
select o.submission_id, o.asked - 'trace_parent' = s.asked - 'trace_parent' and o.content_type = s.content_type and o.sha256 = $2 as same
from pcfarm.submission s
join pcfarm.submission o on o.owner = s.owner and o.idempotency_key = s.idempotency_key and o.state <> 'receiving'
where s.submission_id = $1
