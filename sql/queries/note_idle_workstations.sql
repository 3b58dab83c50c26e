-- Workstations that do not work though they could, and those that cannot tell whether a person is present. Returns how many of
-- each were reported now.
select pcfarm.note_idle_workstations() as without_work, pcfarm.note_cannot_tell() as cannot_tell
