-- What is due, at most $2, until the transaction ends: what another server has is passed over. Everything before $1 has been
-- looked at when nothing could be missed, so dead entries of the index, which an open snapshot keeps for as long as it likes,
-- are read of some seconds only; now and then it is '-infinity'.
select x.schedule_id, x.version, x.sequence, x.due_at, x.wake_at, x.last_due_at, x.early, statement_timestamp() as now
from pcfarm.schedule_next x
where x.wake_at > $1 and x.wake_at <= statement_timestamp()
order by x.wake_at
limit $2
for update skip locked
