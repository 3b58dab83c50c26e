-- A request that was not done after all.
delete from pcfarm.request r where r.owner = $1 and r.key = $2 and r.server_id = $3 and r.answered_at is null
