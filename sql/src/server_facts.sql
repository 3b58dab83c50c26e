-- What the server we talk to is, before anything is trusted to it. The write position is asked for only outside recovery,
-- where it exists; its file name begins with the timeline, which pg_control_checkpoint() shows only after the checkpoint
-- that follows a promotion.
select current_setting('server_version')              as version,
       current_setting('server_version_num')::int     as version_num,
       pg_is_in_recovery()                            as in_recovery,
       current_setting('server_encoding')             as server_encoding,
       current_setting('fsync')::bool                 as fsync,
       current_setting('full_page_writes')::bool      as full_page_writes,
       current_setting('synchronous_commit')          as synchronous_commit,
       current_setting('max_connections')::int        as max_connections,
       current_setting('session_replication_role')    as session_replication_role,
       coalesce(nullif(current_setting('plpgsql.variable_conflict', true), ''), 'error') as variable_conflict,
       (select system_identifier from pg_control_system()) as system_identifier,
       case when not pg_is_in_recovery()
            then ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
       end                                            as timeline
