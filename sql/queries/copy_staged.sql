copy pg_temp.pcfarm_staged (number, member_of, key, payload) from stdin (format binary)
