-- One row per server is the liveness of all its workstations. After a gap longer than $2 seconds it has not
-- been hearing, and says so: silence counts only while some server could have recorded a word.
--
-- Each pulse tells the other servers which workstations are idle here ($5), and returns theirs.
update pcfarm.server s set heard_at = clock_timestamp(), refused_results = $3, idle = $5,
    hearing_since = case when s.heard_at < clock_timestamp() - $2 * interval '1 second' or $4
        -- A clock that was ahead wrote these times: silence counts from now.
        or greatest(s.heard_at, s.hearing_since) > clock_timestamp() then clock_timestamp()
                         else s.hearing_since end
where s.server_id = $1
returning coalesce((
    select array_agg(i) from pcfarm.server o cross join lateral unnest(o.idle) i
    where o.stopped_at is null and o.server_id <> $1 and o.heard_at > clock_timestamp() - $2 * interval '1 second'), '{}') as idle
