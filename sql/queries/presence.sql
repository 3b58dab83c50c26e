select coalesce(r.wanted, '{}') as wanted, coalesce(pcfarm.version_of('presence', $1), 'none') as version
from (values (1)) one
left join pcfarm.presence r on r.hostname = $1
