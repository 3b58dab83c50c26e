-- Moves heartbeats, silence and ends that lie in the future to now: a clock that was ahead wrote them. A silent workstation is dead one
-- lease from now, and not when that time comes again; checkouts of an offline one come back one lease from now. Running servers correct
-- their own rows with each pulse (pulse.sql). A locked row keeps its times until the next pass.
--
-- Heartbeats and silence are corrected by a clock that is behind, too: when it comes back, hearing begins anew (pulse.sql), so nothing dies
-- before a whole lease. The time since when a workstation is offline is for people, and stays then.
with ahead_servers as materialized (
    select s.server_id from pcfarm.server s
    where s.heard_at > clock_timestamp() + interval '1 second' or s.hearing_since > clock_timestamp() + interval '1 second'
    order by s.server_id
    for update skip locked),
servers as (
    update pcfarm.server s set heard_at = least(s.heard_at, clock_timestamp()), hearing_since = least(s.hearing_since, clock_timestamp())
    where s.server_id in (select a.server_id from ahead_servers a)),
ahead_workstations as materialized (
    select w.workstation_id from pcfarm.workstation w
    where w.state <> 'dead' and (w.silent_since > clock_timestamp() + interval '1 second'
        or w.state = 'offline' and w.since > clock_timestamp() + interval '1 second' and not (select pcfarm.clock_is_behind()))
    order by w.workstation_id
    for update skip locked)
update pcfarm.workstation w set silent_since = least(w.silent_since, clock_timestamp()),
    since = case when (select pcfarm.clock_is_behind()) then w.since else least(w.since, clock_timestamp()) end
where w.workstation_id in (select a.workstation_id from ahead_workstations a)
