-- $3: the version that it is meant for, of one alone.
select pcfarm.set_presence($1, $2)
where case when cardinality($1) = 1 then pcfarm.expect_version('presence', ($1)[1], $3) else true end
