-- Requests of more than a day ago, the oldest first, by the index on their time.
delete from pcfarm.request r where r.ctid = any (array(
    select o.ctid from pcfarm.request o where o.begun_at < clock_timestamp() - interval '1 day' and (select pcfarm.clock_is_proven())
    order by o.begun_at limit 10000))
