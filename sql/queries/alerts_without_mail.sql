-- Where this server cannot mail, alerts say so, and are given up when a day is over. Another may be able to: it has a
-- minute. No alert looks a day old while the clock is unproven.
update pcfarm.alert a set message = $1,
    given_up_at = case when f.is_old then clock_timestamp() end,
    next_attempt_at = case when f.is_old then null else a.next_attempt_at end
from (
    select o.alert_id, o.begun_at < now() - interval '1 day' and (select pcfarm.clock_is_proven()) as is_old
    from pcfarm.alert o
    where o.place = 'email' and o.next_attempt_at <= now() - interval '1 minute'
        and (o.message = '' or o.begun_at < now() - interval '1 day' and (select pcfarm.clock_is_proven()))
    order by o.next_attempt_at
    limit 1000
    for update skip locked) f
where a.alert_id = f.alert_id
