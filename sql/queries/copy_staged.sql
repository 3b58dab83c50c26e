copy pg_temp.pcfarm_staged (number, group_key, key, payload) from stdin (format binary)
