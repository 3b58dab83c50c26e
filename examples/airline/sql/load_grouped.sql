select key, payload, group_key from airline.problem('night', 'leg')
