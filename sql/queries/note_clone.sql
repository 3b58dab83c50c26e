-- Records that an identity was found on two machines: the workstation, details, and how often the same is news (null: once).
select pcfarm.note_clone($1, $2, $3 * interval '1 second')
