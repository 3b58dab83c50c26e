select coalesce(s.selection, '{}') as selection, coalesce(pcfarm.version_of('selection', $1), 'none') as version
from (values (1)) one
left join pcfarm.selection s on s.hostname = $1
