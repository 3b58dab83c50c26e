select pcfarm.note_nowhere()
