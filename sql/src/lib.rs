//! pcfarm-sql
