-- Registers a workstation or takes its connection over. Says which instance spoke for it before, and whether
-- it had been declared dead: read before the row is written, since what only RETURNING asks for is read after. The
-- session's number is drawn under the row's lock, so that of two connections the one that comes last has the newer.
with prior as materialized (
    select w.workstation_id, w.instance, w.state from pcfarm.workstation w where w.identity = $1 for update)
insert into pcfarm.workstation as w (identity, instance, hostname, cores, memory_bytes, system, agent_version,
    controllers, state, session, server_id)
select $1, $2, $3, $4, $5, $6, $7, $8::text[], $9, nextval('pcfarm.session_number'), $10
from (select) one left join prior on true
on conflict (identity) do update set
    instance = excluded.instance, hostname = excluded.hostname, cores = excluded.cores,
    memory_bytes = excluded.memory_bytes, system = excluded.system, agent_version = excluded.agent_version,
    controllers = excluded.controllers, session = excluded.session, server_id = excluded.server_id,
    state = case when w.drain then 'draining' else excluded.state end,
    since = case when w.state = case when w.drain then 'draining' else excluded.state end then w.since
                 else clock_timestamp() end,
    reason = case when w.drain then w.reason else '' end,
    silent_since = null, connected_at = clock_timestamp()
returning w.workstation_id, w.session, w.drain,
    coalesce((select p.instance = $2 from prior p), false) as same_instance,
    coalesce((select p.state = 'dead' from prior p), false) as was_dead
