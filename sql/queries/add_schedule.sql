select pcfarm.add_schedule(coalesce($1::text, pcfarm.acting_user())::name, $2, $3, $4)
