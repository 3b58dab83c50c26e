-- The newest $3; of job $1 if given, and with $2 those that were not delivered alone.
select a.alert_id, a.subscription_id, a.owner::text as owner, a.channel, a.target, a.what, a.job_id, a.job_name, a.state,
    a.message, a.attempts, a.created_at, a.next_attempt_at, a.delivered_at, a.given_up_at
from pcfarm.alert_status a
where ($1::bigint is null or a.job_id = $1) and (not $2 or a.delivered_at is null)
    and ($4::bigint is null or a.alert_id = $4)
order by a.alert_id desc
limit $3
