-- Workstations not heard of for the lease ($1 seconds). A server that runs marks its own silent ones; the word of
-- one that has stopped running is its last pulse. A server that could not write for a while gives its own a full
-- lease from then on. Silence counts only while a server could have heard: some
-- server must run now (pulse not older than $2 seconds) and have heard without a gap for a lease. One that has said that it goes to sleep
-- is offline then.
with hearing as materialized (
    select s.server_id, s.hearing_since from pcfarm.server s
    where s.stopped_at is null and s.heard_at > clock_timestamp() - $2 * interval '1 second'),
silent as materialized (
    select w.workstation_id,
        case when h.server_id is not null
                 then case when w.silent_since is not null then greatest(w.silent_since, h.hearing_since) end
             else greatest(coalesce(w.silent_since, s.heard_at), (select min(hearing_since) from hearing)) end as since
    from pcfarm.workstation w
    join pcfarm.server s on s.server_id = w.server_id
    left join hearing h on h.server_id = w.server_id
    where w.state not in ('offline', 'dead')
        and exists (select from hearing where hearing_since <= clock_timestamp() - $1 * interval '1 second')),
dying as materialized (
    select w.workstation_id, s.since from pcfarm.workstation w
    join silent s on s.workstation_id = w.workstation_id
    where w.state not in ('offline', 'dead') and s.since < clock_timestamp() - $1 * interval '1 second'
    order by w.workstation_id
    limit 1000
    for update of w skip locked)
update pcfarm.workstation w set state = case when w.asleep then 'offline' else 'dead' end, since = clock_timestamp(),
    -- A lease of silence is over: checkouts of a workstation that sleeps do not wait for another (lost_checkouts.sql).
    reason = case when w.asleep then w.reason else 'not heard of for the lease' end, silent_since = coalesce(w.silent_since, d.since)
from dying d
where w.workstation_id = d.workstation_id
returning w.workstation_id, w.hostname
