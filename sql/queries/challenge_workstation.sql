-- Asks the server that holds this session whether its agent answers.
select pg_notify('pcfarm', format('challenge %s %s', $1::bigint, $2::bigint))
