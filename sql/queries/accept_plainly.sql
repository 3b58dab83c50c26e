-- A few first-time solutions under one live checkout of a job type without write-back: what pcfarm.accept does with them, in
-- one statement, whose parts cost a third of the function's statements. No row: nothing has happened, and the function says
-- why, or does it.
--
-- The update is lock and fence: after a wait its conditions are asked again of the checkout's newest version. What is
-- elsewhere would be seen as before the wait, so a checkout that was changed since this statement began is the function's;
-- whoever notes a failed attempt changes its checkout. Only the key's index fits: with statistics of an empty farm one of live
-- checkouts would be read from end to end.
with live as (
    update pcfarm.checkout c set delivered = c.delivered + $5::integer,
        ended_at = case when $4::boolean and c.delivered + $5 = c.problems then clock_timestamp() end,
        ending = case when $4 and c.delivered + $5 = c.problems then 'accepted' end
    where c.checkout_id = $1::bigint
        and c.xmin = (select d.xmin from pcfarm.checkout d where d.checkout_id = $1)
        and (c.token, c.job_type, c.ended_at) is not distinct from ($2::bigint, $3::text, null::timestamptz)
        and c.delivered + $5 <= c.problems
        -- Some of the solutions may be of problems that were given back.
        and c.given_back is null
        and exists (select from pcfarm.job_type t where t.name = $3 and t.write_back is null)
        -- Those of problems that are solved after all are to be forgotten. Asked so that it is not made a join, for whose
        -- sake another index would be read from end to end.
        and (select true from pcfarm.failed_attempt f where f.job_id = c.job_id and f.checkout_id = c.checkout_id limit 1) is null
    returning c.job_id, c.ended_at is not null as closed, coalesce(c.ended_at, clock_timestamp()) as moment,
        (select t.keep_results from pcfarm.job_type t where t.name = $3) as keeps),
stored as (
    insert into pcfarm.result (job_id, problem_id, checkout_id, accepted_at, attempts, failed, solution)
    select l.job_id, s.problem_id, $1, l.moment, 1, false, case when l.keeps then s.solution::jsonb end
    from live l cross join (select unnest($6::bigint[]) as problem_id, unnest($7::text[]) as solution) s),
noted as (
    insert into pcfarm.progress (job_id, job_type, done, busy_seconds)
    select l.job_id, $3, $5, $8::float8 from live l)
select l.closed from live l
