-- Open jobs without a live checkout and without a lane to hand out: candidates, decided under the job's lock.
select j.job_id from pcfarm.job j
where j.ended_at is null and j.state = 'open' and not j.standing
    and not exists (select from pcfarm.checkout c where c.job_id = j.job_id and c.ended_at is null)
    and not exists (
        select from pcfarm.lane l where l.job_id = j.job_id and not l.exhausted and l.kind <> 'retry')
order by j.job_id
limit 1000
