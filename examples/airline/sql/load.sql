select key, payload from airline.problem('night', 'leg')
