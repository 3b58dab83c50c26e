-- Either the newest $8 events ($5 null, $4 null), those since $4, or those that were not visible in snapshot $5: ids may be
-- committed out of order, and whoever goes on by snapshots misses none. Of a list that is cut, the rest is what snapshot
-- $6 shows behind ($7, $9). Of everybody's jobs and workstations, or of one user's jobs ($10). With it the snapshot that this answer shows, also if there is no event.
select pg_current_snapshot()::text as snapshot, e.*
from (select) one
left join (
    select e.transaction_id::text::bigint as transaction_id, e.event_id, e.happened_at, e.who::text as who, e.program, e.what,
        e.job_id, e.workstation_id, e.subject, e.details
    from pcfarm.event e
    where ($1::bigint is null or e.job_id = $1) and ($2::bigint is null or e.workstation_id = $2)
        and starts_with(e.what, $3) and ($4::timestamptz is null or e.happened_at >= $4)
        and ($5::text is null or (e.transaction_id >= pg_snapshot_xmin($5::pg_snapshot)
            and not pg_visible_in_snapshot(e.transaction_id, $5::pg_snapshot)))
        and ($6::text is null or pg_visible_in_snapshot(e.transaction_id, $6::pg_snapshot))
        and ($10::text is null or exists (
            select from pcfarm.job j where j.job_id = e.job_id and j.owner = $10::text::name))
        and ($7::bigint is null or (e.transaction_id, e.event_id) > ($7::text::xid8, $9::bigint))
    order by case when $5 is null and $4 is null and $7 is null then e.transaction_id end desc,
        case when $5 is null and $4 is null and $7 is null then e.event_id end desc, e.transaction_id, e.event_id
    limit $8) e on true
order by e.transaction_id, e.event_id
