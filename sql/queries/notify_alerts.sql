-- What is told on a channel is told by the transaction that says so.
with due as materialized (
    select a.alert_id from pcfarm.alert a
    join pcfarm.subscription s on s.subscription_id = a.subscription_id
    where a.place = 'notify' and a.next_attempt_at <= now()
    order by a.next_attempt_at
    limit 100
    for update of a skip locked),
told as (
    update pcfarm.alert a set attempts = a.attempts + 1, delivered_at = clock_timestamp(), next_attempt_at = null, message = ''
    from due d, pcfarm.subscription s
    where a.alert_id = d.alert_id and s.subscription_id = a.subscription_id
    returning a.alert_id, a.what, a.body, s.target)
select count(pg_notify(t.target, jsonb_build_object('alert_id', t.alert_id::text, 'type', case when t.what like 'workstation%' then regexp_replace(t.what, '^workstation_', 'workstation.') else 'job.' || t.what end,
        'job_id', t.body -> 'job_id', 'name', t.body -> 'name', 'state', t.body -> 'state', 'problems', t.body -> 'problems',
    'done', t.body -> 'done', 'failed', t.body -> 'failed', 'hostname', t.body -> 'hostname', 'workstations', t.body -> 'workstations')::text)::text)
from told t
