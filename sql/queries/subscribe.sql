select s.subscription, s.secret from pcfarm.subscribe($1::jsonb) s
