copy pg_temp.pcfarm_submitted (number, group_key, key, payload) from stdin (format binary)
