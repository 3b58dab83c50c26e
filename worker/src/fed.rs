//! What programs and modules have in common: they are fed problems as lines, and whatever they answer may be wrong.
//!
//! - [`lines`]: a problem as a line, and a line as a solution.
//! - [`failure`]: what can go wrong, in words.

pub mod failure;
pub mod lines;

use pcfarm_proto::SOLUTION_BYTES_LIMIT;

/// Most bytes of an answer: what the farm can store, and what it is wrapped in.
pub const ANSWER_BYTES_LIMIT: usize = SOLUTION_BYTES_LIMIT + (256 << 10);

/// How much of the end of standard error is kept.
pub const STDERR_BYTES_LIMIT: usize = 16 << 10;
