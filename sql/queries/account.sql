select a.role, a.password_hash, a.disabled_at is not null as disabled from pcfarm.account a where a.user_name = $1::text::name
