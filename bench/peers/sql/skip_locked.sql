-- The classic queue in SQL: lock the next rows that nobody else has locked, fetch their payloads, delete them.
begin;
select array_agg(id) as ids, array_agg(payload) as payloads
from (select id, payload from job order by id limit 100 for update skip locked) as locked \gset
delete from job where id = any(:ids);
commit;
