//! The fault harness: hurts a whole farm of real processes at random moments, from a seed, and then asks an oracle, which
//! is not in the database, whether anything was lost, doubled or applied that should not have been.

mod disks;
mod faults;
mod journal;
mod link;
mod oracle;
mod planted;
mod run;
mod score;
mod workload;
mod world;

pub use faults::Kind;
pub use oracle::Judgement;
pub use planted::{PLANTED, Planted};
pub use run::{Outcome, Plan, RECOVERY, run};
pub use score::{Score, score};
