select pcfarm.add_schedule(coalesce($1::text, session_user)::name, $2, $3, $4)
