delete from pcfarm.handed_out h where h.began_at < clock_timestamp() - 2 * pcfarm.hour()
