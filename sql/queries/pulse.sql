-- One row per server is the liveness of all its workstations. After a gap longer than $2 seconds it has not
-- been hearing, and says so: silence counts only while some server could have recorded a word.
update pcfarm.server s set heard_at = clock_timestamp(), refused_results = $3,
    hearing_since = case when s.heard_at < clock_timestamp() - $2 * interval '1 second' or $4 then clock_timestamp()
                         else s.hearing_since end
where s.server_id = $1
