-- Which process serves this connection.
select pg_backend_pid()
