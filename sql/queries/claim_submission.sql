-- Stored submissions to load, unless intake is paused: at most $1 small and $2 large ones, and of an owner no more than $3
-- small ones and one large one at a time, on all servers. Whose fewest are being loaded comes first, and then who has waited
-- for longest. They are claimed for $5 seconds (renew_submissions.sql).
--
-- The owners are found one after the other, each by one look into the index submission_to_load: it does not matter how much
-- one of them has stored. Counting and claiming are one statement, but two servers may count at the same time: of an owner
-- more may then be loaded for a while, none of them twice.
with recursive owners as (
    (select s.owner from pcfarm.submission s where s.state = 'stored' order by s.owner limit 1)
    union all
    select (
        select s.owner from pcfarm.submission s where s.state = 'stored' and s.owner > o.owner order by s.owner limit 1)
    from owners o where o.owner is not null),
loading as (
    select s.owner, count(*) filter (where not s.is_large) as small, count(*) filter (where s.is_large) as large
    from pcfarm.submission s
    where s.claimed_by is not null and s.state = 'stored' and s.next_attempt_at > clock_timestamp()
    group by s.owner),
waiting as (
    select w.submission_id, w.next_attempt_at, w.is_large,
        case when w.is_large then coalesce(l.large, 0) else coalesce(l.small, 0) end + row_number() over (
            partition by o.owner, w.is_large order by w.next_attempt_at, w.submission_id) as turn
    from owners o
    left join loading l on l.owner = o.owner
    cross join lateral (
        (select s.submission_id, s.next_attempt_at, s.is_large from pcfarm.submission s
        where s.owner = o.owner and s.state = 'stored' and not s.is_large and s.next_attempt_at <= clock_timestamp()
        order by s.next_attempt_at, s.submission_id limit $3)
        union all
        (select s.submission_id, s.next_attempt_at, s.is_large from pcfarm.submission s
        where s.owner = o.owner and s.state = 'stored' and s.is_large and s.next_attempt_at <= clock_timestamp()
        order by s.next_attempt_at, s.submission_id limit 1)) w
    where o.owner is not null and not exists (select from pcfarm.intake i where i.paused_since is not null)),
ranked as (
    select w.submission_id, w.is_large,
        row_number() over (partition by w.is_large order by w.turn, w.next_attempt_at, w.submission_id) as rank
    from waiting w where w.turn <= case when w.is_large then 1 else $3::bigint end),
locked as materialized (
    select s.submission_id from pcfarm.submission s
    join ranked r on r.submission_id = s.submission_id
    where r.rank <= case when r.is_large then $2::bigint else $1::bigint end
        and s.state = 'stored' and s.next_attempt_at <= clock_timestamp()
    order by s.submission_id for update of s skip locked)
update pcfarm.submission s
set attempts = s.attempts + 1, claimed_by = $4, next_attempt_at = clock_timestamp() + make_interval(secs => $5)
from locked l
where s.submission_id = l.submission_id
returning s.submission_id, s.owner::text, s.asked, s.content_type, s.kept_in, s.bytes, s.is_large, s.sha256, s.attempts
