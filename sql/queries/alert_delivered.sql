-- Whoever has delivered it has, even if another has taken it meanwhile.
update pcfarm.alert a set delivered_at = clock_timestamp(), next_attempt_at = null, message = ''
where a.alert_id = $1 and a.next_attempt_at is not null
