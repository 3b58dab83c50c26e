-- One recycler at a time. The lock goes with the transaction, and a frozen one's transaction ends in two seconds:
-- recycling twice at once does no harm, recycling never would.
select pg_try_advisory_xact_lock(7402310, 1), set_config('idle_in_transaction_session_timeout', '2s', true)
