-- Unless another has taken it meanwhile: it is tried again after a while, which doubles up to an hour, and given up when a
-- day is over or, with $4, at once.
update pcfarm.alert a set message = left($3, 500),
    given_up_at = case when f.final then clock_timestamp() end,
    next_attempt_at = case when not f.final then
        clock_timestamp() + least(interval '1 hour', interval '15 seconds' * 2 ^ least(a.attempts - 1, 12)) * (0.75 + random() / 2) end
from (select o.alert_id, $4 or o.begun_at < now() - interval '1 day' and pcfarm.clock_is_proven() as final from pcfarm.alert o where o.alert_id = $1) f
where a.alert_id = f.alert_id and a.attempts = $2 and a.next_attempt_at is not null
