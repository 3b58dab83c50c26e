-- Whether that workstation shows certificates, and so is none without one.
select exists (select from pcfarm.workstation_credential c where c.identity = $1)
