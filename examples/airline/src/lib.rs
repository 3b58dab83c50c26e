//! pcfarm-airline
