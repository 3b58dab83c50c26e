-- From here on this connection does what a user of a server asks for: what it makes is that user's. The pool resets it
-- before anybody else has it. With it, whose a job is.
select set_config('pcfarm.user', $1, false), set_config('pcfarm.rights', $2, false),
    (select j.owner::text from pcfarm.job j where j.job_id = $3) as owner
