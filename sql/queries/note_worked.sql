-- Notes that these workstations have had results accepted.
select pcfarm.note_worked($1)
