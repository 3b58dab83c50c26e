insert into pcfarm.server (name, address, version) values ($1, $2, $3) returning server_id
