-- The farm in numbers, from workstations and jobs that have not ended; no problem is looked at.
with station as (
    select s.state, s.cores, s.cannot_tell, s.unheard, s.without_work from pcfarm.workstation_status s),
running as (
    select p.state, p.waiting, p.in_progress from pcfarm.job_progress p where p.ended_at is null)
select
    (select count(*) from station where state = 'waiting') as workstations_waiting,
    (select count(*) from station where state = 'processing') as workstations_processing,
    (select count(*) from station where state = 'suspended' and not cannot_tell) as workstations_suspended,
    (select count(*) from station where cannot_tell) as workstations_cannot_tell,
    (select count(*) from station where state = 'offline') as workstations_offline,
    (select count(*) from station where state = 'lost') as workstations_lost,
    (select count(*) from station where unheard and state <> 'lost') as workstations_unheard,
    (select count(*) from station where without_work) as workstations_without_work,
    (select count(*) from station where state = 'draining') as workstations_draining,
    (select count(*) from station where state = 'dead') as workstations_dead,
    (select coalesce(sum(cores), 0) from station where state not in ('offline', 'dead', 'lost'))::bigint as cores,
    (select count(*) from running where state = 'loading') as jobs_loading,
    (select count(*) from running where state = 'open') as jobs_open,
    (select count(*) from running where state = 'held') as jobs_held,
    (select coalesce(sum(waiting), 0) from running)::bigint as problems_waiting,
    (select coalesce(sum(in_progress), 0) from running)::bigint as problems_in_progress,
    (select coalesce(sum(refused_results), 0) from pcfarm.server)::bigint as refused_results
