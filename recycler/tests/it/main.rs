//! Integration tests of the recycler, in one binary.

mod recycling;
