-- What is null stays as it is.
update pcfarm.account a set
    role = coalesce($2, a.role),
    disabled_at = case when $3::boolean then coalesce(a.disabled_at, clock_timestamp())
        when not $3::boolean then null else a.disabled_at end
where a.user_name = $1::text::name
