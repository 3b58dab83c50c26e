-- Where this server cannot mail, alerts say so, and are given up when a day is over. Another may be able to: it has a
-- minute.
update pcfarm.alert a set message = $1,
    given_up_at = case when a.begun_at < now() - interval '1 day' then clock_timestamp() end,
    next_attempt_at = case when a.begun_at < now() - interval '1 day' then null else a.next_attempt_at end
where a.alert_id = any (array(
    select o.alert_id from pcfarm.alert o
    where o.place = 'email' and o.next_attempt_at <= now() - interval '1 minute'
        and (o.message = '' or o.begun_at < now() - interval '1 day')
    order by o.next_attempt_at
    limit 1000
    for update skip locked))
