//! The fault harness: hurts a whole farm of real processes at random moments, from a seed, and then asks an oracle, which
//! is not in the database, whether anything was lost, doubled or applied that should not have been.

mod faults;
mod journal;
mod link;
mod oracle;
mod run;
mod workload;
mod world;

pub use faults::Kind;
pub use oracle::Judgement;
pub use run::{Outcome, Plan, run};
