-- GPUs ($3) and programs ($4) of the workstation ($1), as its agent says in this session ($2).
update pcfarm.workstation w set gpus = $3, programs = $4
where w.workstation_id = $1 and w.session = $2 and w.state not in ('offline', 'dead') and (w.gpus, w.programs) is distinct from ($3::text[], $4::text[])
