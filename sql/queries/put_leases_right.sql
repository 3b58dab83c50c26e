-- Moves heartbeats and silence that lie in the future to now: a clock that was ahead wrote them. A silent workstation is dead one lease
-- from now, and not when that time comes again. Running servers correct their own rows with each pulse (pulse.sql).
with servers as (
    update pcfarm.server s set heard_at = least(s.heard_at, clock_timestamp()), hearing_since = least(s.hearing_since, clock_timestamp())
    where s.heard_at > clock_timestamp() + interval '1 second' or s.hearing_since > clock_timestamp() + interval '1 second')
update pcfarm.workstation w set silent_since = clock_timestamp()
where w.state not in ('offline', 'dead') and w.silent_since > clock_timestamp() + interval '1 second'
