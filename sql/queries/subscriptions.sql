-- Those to job $1, or the one with id $2, or all; the newest first.
select s.subscription_id, s.owner::text as owner, s.job_id, s.job_type, s.all_users, s.events, s.failed_share, s.channel,
    s.target, to_char(s.digest_at, 'HH24:MI') as digest_at, s.time_zone, s.next_digest_at, s.created_at
from pcfarm.subscription_status s
where ($1::bigint is null or s.job_id = $1) and ($2::bigint is null or s.subscription_id = $2)
order by s.subscription_id desc
limit 1000
