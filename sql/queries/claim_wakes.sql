select c.workstation_id, c.hostname, c.card, c.address, c.try from pcfarm.claim_wakes() c
