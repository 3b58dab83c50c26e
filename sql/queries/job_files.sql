select f.name, f.sha256 from pcfarm.job_file f where f.job_id = $1 order by f.name
