-- Whether anybody is to be asked who they are: people, and workstations.
select exists (select from pcfarm.account), exists (select from pcfarm.workstation_credential)
