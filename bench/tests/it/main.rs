//! Integration tests of whole farms, in one binary: real servers, agents, recyclers and databases.

// Shared by the tests.
mod collector;
mod postbox;
mod receiver;

// Jobs and scheduling.
mod bringing;
mod night;
mod office;
mod pools;
mod related;
mod requirements;
mod schedules;
mod sharing;

// Access, alerts and traces.
mod access;
mod alerts;
mod outward;
mod traces;

// Workstations.
mod copies;
mod desks;
mod fleet;
mod idle;
mod installed;
mod lease;
mod links;
mod sources;
mod waking;

// Faults.
mod aside;
mod clock;
mod crash_points;
mod deaths;
mod failover;
mod herd;
mod hostile;
mod outage;
mod poison;
mod spread;
