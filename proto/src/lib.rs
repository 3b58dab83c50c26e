//! pcfarm-proto
