-- The oldest alert that is due of each place but those in $2, at most $1: nobody else takes them for $3 seconds. Places are
-- found by skipping through the index, so that ten thousand alerts of one do not stand before those of another. An alert
-- whose subscription is gone is skipped. The day after which it is given up begins with the first attempt: there may have been
-- no server for longer.
with recursive place as (
    (select a.place from pcfarm.alert a where a.next_attempt_at is not null order by a.place limit 1)
    union all
    select (
        select a.place from pcfarm.alert a where a.next_attempt_at is not null and a.place > p.place order by a.place limit 1)
    from place p where p.place is not null),
due as materialized (
    select d.alert_id, d.subscription_id
    from place p
    cross join lateral (
        select a.alert_id, a.subscription_id, a.next_attempt_at
        from pcfarm.alert a
        join pcfarm.subscription s on s.subscription_id = a.subscription_id
        where a.place = p.place and a.next_attempt_at <= now()
        order by a.next_attempt_at
        limit 1
        for update of a skip locked) d
    where p.place is not null and p.place <> 'notify' and p.place <> all ($2::text[])
    order by d.next_attempt_at
    limit $1)
update pcfarm.alert a set attempts = a.attempts + 1, next_attempt_at = now() + make_interval(secs => $3),
    begun_at = case when a.attempts = 0 then now() else a.begun_at end
from due d
join pcfarm.subscription s on s.subscription_id = d.subscription_id
where a.alert_id = d.alert_id
returning a.alert_id, a.message_id::text as message_id, a.attempts, a.what, a.place, a.body, a.created_at, s.channel, s.target,
    s.secret, a.job_id, (select j.trace_parent from pcfarm.job j where j.job_id = a.job_id) as trace_parent
