-- It is this holder's no more. The content goes later, if nobody else needs it.
delete from pcfarm.file_holder h where h.holder_id = $1
