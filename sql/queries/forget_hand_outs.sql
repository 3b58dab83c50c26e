-- All before the last one that is too old for any limit: from that on is counted what came later.
with last as (
    select p.profile_id, l.at
    from pcfarm.profile p
    cross join lateral (
        select h.at from pcfarm.handed_out h
        where h.profile_id = p.profile_id and h.at < clock_timestamp() - 2 * pcfarm.hour()
        order by h.at desc limit 1) l)
delete from pcfarm.handed_out h using last l where h.profile_id = l.profile_id and h.at < l.at
