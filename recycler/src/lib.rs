//! pcfarm-recycler
