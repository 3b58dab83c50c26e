//! pcfarm-server
