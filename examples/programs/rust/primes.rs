//! Counts the primes of a range: a problem is `{"from": 0, "to": 100}`, its solution `{"primes": 25}`.
//!
//! One source, two ways to run it. As a module that a job type ships, in a sandbox on any workstation:
//!
//! ```sh
//! rustup target add wasm32-wasip1
//! rustc --edition 2024 --target wasm32-wasip1 -O -o primes.wasm primes.rs
//! ```
//!
//! or as a program that is installed there (`exec`): `rustc --edition 2024 -O -o primes primes.rs`.
//!
//! It reads its questions by hand, so that one command builds it. A package with `serde_json` is built by
//! `cargo build --release --target wasm32-wasip1`.

use std::io::{self, BufRead, Write};

/// The whole number behind `"name":`, if there is one.
fn number(text: &str, name: &str) -> Option<i64> {
    let rest = text.split_once(&format!("\"{name}\":"))?.1.trim_start();
    let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn is_prime(n: i64) -> bool {
    n >= 2 && (2..).take_while(|f| f * f <= n).all(|f| n % f != 0)
}

fn answer(question: &str) -> String {
    // Within a JSON text a quote has a backslash before it, so this is no part of a key.
    let payload = question.split_once("\"payload\":").map_or("", |parts| parts.1);
    match (number(payload, "from"), number(payload, "to")) {
        (Some(from), Some(to)) if from > to => format!(r#"{{"error": "from {from} to {to} is no range"}}"#),
        (Some(from), Some(to)) => {
            let primes = (from..to).filter(|&n| is_prime(n)).count();
            format!(r#"{{"result": {{"primes": {primes}}}}}"#)
        }
        _ => r#"{"error": "from and to are wanted, two whole numbers"}"#.to_owned(),
    }
}

fn main() -> io::Result<()> {
    for question in io::stdin().lock().lines() {
        // An answer is written at once: the next question comes after it.
        let mut out = io::stdout().lock();
        writeln!(out, "{}", answer(&question?))?;
        out.flush()?;
    }
    Ok(())
}
