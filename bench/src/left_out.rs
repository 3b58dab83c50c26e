//! Tests that are left out on this machine, wholly or in part: each says so, and `scripts/test` tells all of them in the end.
//!
//! Owns the two variables by which that is asked for. Other packages' tests take this file by its path: it knows nothing of farms.

use std::fs::File;
use std::io::Write;

/// Of a file that gets a line for each.
const NOTED_IN: &str = "PCFARM_LEFT_OUT";

/// With `1`, nothing is left out that installing something would bring back.
const NO_SKIPS: &str = "PCFARM_NO_SKIPS";

/// For want of something that `scripts/test` installs where it can.
#[track_caller]
pub fn for_want_of(what: &str) {
    let all_are_wanted = std::env::var_os(NO_SKIPS).is_some_and(|value| value == "1");
    assert!(!all_are_wanted, "{what} is missing, and with {NO_SKIPS} no test may be left out for that");
    note(&format!("for want of {what}"));
}

/// For what this machine is, or who runs the test: nothing that is installed changes it.
pub fn here(why: &str) {
    note(why);
}

fn note(why: &str) {
    let thread = std::thread::current();
    let named = std::env::var("NEXTEST_TEST_NAME").ok().or_else(|| thread.name().map(str::to_owned));
    let line = format!("{}: {why}\n", named.as_deref().unwrap_or("a test"));
    eprint!("LEFT OUT {line}");
    let Some(path) = std::env::var_os(NOTED_IN) else { return };
    // Tests of many processes write there: a line in one piece.
    let noted =
        File::options().create(true).append(true).open(path).and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = noted {
        eprintln!("{NOTED_IN} cannot be written: {error}");
    }
}
