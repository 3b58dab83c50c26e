//! pcfarm-worker
